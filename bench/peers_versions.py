"""Which versions of the peers were measured, as they tell it themselves."""

from __future__ import annotations

import re
import subprocess

from bench.client_peers import Absent
from bench.peers_kafka import tools as kafka_tools
from bench.peers_servers import apache_peer

_COMMANDS = {
    "Redis": ["redis-server", "--version"],
    "NATS": ["nats-server", "--version"],
    "RabbitMQ": ["rabbitmqctl", "version"],
    "Java": ["java", "-version"],
}
_PEERS = {"Apache RocketMQ": apache_peer, "Kafka": kafka_tools}
_NUMBER = re.compile(r"\d+\.\d[\w.+-]*")
_TIMEOUT_S = 30


def versions() -> str:
    """``Apache RocketMQ 5.5.0, Kafka ..., Redis ...``; whoever cannot be had is left out."""
    found: dict[str, str] = {}
    for name, get in _PEERS.items():
        try:
            found[name] = get().version
        except Absent:
            # The suite says elsewhere who is absent, and why.
            continue
    for name, command in _COMMANDS.items():
        told = _told(command)
        if told is not None:
            found[name] = told
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _told(command: list[str]) -> str | None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    number = _NUMBER.search(done.stdout + done.stderr)
    return number[0] if number is not None else None
