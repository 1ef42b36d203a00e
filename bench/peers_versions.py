"""The versions of the measured peers, as their programs print them."""

from __future__ import annotations

import re
import subprocess

from bench.client_peers import Absent
from bench.peers_kafka import tools as kafka_tools
from bench.peers_servers import apache_peer

# The command to run, and where the version stands in its output.
_COMMANDS = {
    "Redis": ("redis-server --version", re.compile(r"\bv=(\S+)")),
    "NATS": ("nats-server --version", re.compile(r"^nats-server: v(\S+)", re.MULTILINE)),
    "RabbitMQ": ("rabbitmqctl version", re.compile(r"^(\d\S*)$", re.MULTILINE)),
    "Java": ("java -version", re.compile(r'^\w+ version "([^"]+)"', re.MULTILINE)),
}
_PEERS = {"Apache RocketMQ": apache_peer, "Kafka": kafka_tools}
_TIMEOUT_S = 30


def versions() -> str:
    """``Apache RocketMQ 5.5.0, Kafka ..., Redis ...``; a missing peer is left out."""
    found: dict[str, str] = {}
    for name, get in _PEERS.items():
        try:
            found[name] = get().version
        except Absent:
            # The suite says elsewhere who is absent, and why.
            continue
    for name, (command, place) in _COMMANDS.items():
        version = told_version(command.split(), place)
        if version is not None:
            found[name] = version
    return ", ".join(f"{name} {version}" for name, version in found.items())


def told_version(command: list[str], place: re.Pattern[str]) -> str | None:
    """The version that a program prints; None if it cannot run or prints something else."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = place.search(done.stdout + done.stderr)
    return found[1] if found is not None else None
