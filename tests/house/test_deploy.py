"""deploy/: what is shipped for operators parses, names what exists, and starts what it says."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from contrail.broker.settings import read_broker_settings
from contrail.broker.state.metric_table import METRICS
from contrail.broker.state.replication_metrics import REPLICATION_METRICS
from contrail.cli.server_options import read_properties
from contrail.nameserver.metrics import METRICS as NAMESERVER_METRICS
from contrail.nameserver.settings import read_nameserver_settings
from contrail.protocol.prometheus_text import MetricKind

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
EVERY_METRIC = (*METRICS, *REPLICATION_METRICS, *NAMESERVER_METRICS)
CONTRAIL = "/opt/contrail/bin/contrail"


def flags_of(command: str) -> set[str]:
    """The long and short flags that a command's help shows."""
    done = subprocess.run(
        [sys.executable, "-m", "contrail.cli", command, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "300", "TERM": "dumb", "PATH": ""},
    )
    return set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", done.stdout))


def require_flags(words: list[str]) -> None:
    """A command line after ``contrail``: every flag of it exists."""
    used = {word.partition("=")[0] for word in words[1:] if word.startswith("-")}
    assert used <= flags_of(words[0]), words


class Unit(configparser.ConfigParser):
    """systemd's files have names twice, and case matters."""

    def optionxform(self, name: str) -> str:
        return name


def unit(path: Path) -> Unit:
    parsed = Unit(strict=False, interpolation=None, delimiters=("=",))
    parsed.read(path, encoding="utf-8")
    return parsed


@pytest.mark.proves("console.running.units")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_a_command_with_flags_that_exist(path: Path) -> None:
    words = shlex.split(unit(path)["Service"]["ExecStart"])
    assert words[0] == CONTRAIL
    require_flags(words[1:])


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_restarts_after_failures_and_has_no_more_rights_than_it_needs(path: Path) -> None:
    service = unit(path)["Service"]
    wanted = {
        "Restart": "on-failure",
        "RestartPreventExitStatus": "2",
        "LimitNOFILE": "65536",
        "NoNewPrivileges": "true",
        "ProtectSystem": "strict",
        "ProtectHome": "true",
        "CapabilityBoundingSet": "",
    }
    assert {name: service.get(name) for name in wanted} == wanted
    assert service["User"] == "contrail"
    assert service["StateDirectory"]
    assert service["RuntimeDirectory"]


@pytest.mark.proves("cli.administration.deploy")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_finds_no_fault_in_a_unit(path: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        print("systemd-analyze is not installed: the units were parsed by this test only")
        assert {"Unit", "Service", "Install"} <= set(unit(path).sections())
        return
    # Its program must exist: here that is Python. Faults of other units do not count.
    copy = tmp_path / path.name
    copy.write_text(path.read_text(encoding="utf-8").replace(CONTRAIL, sys.executable))
    done = subprocess.run([analyze, "verify", str(copy)], capture_output=True, text=True)
    faults = [line for line in done.stderr.splitlines() if path.name in line]
    assert faults == []


def test_the_example_settings_are_read_without_a_complaint(tmp_path: Path) -> None:
    broker = read_broker_settings(read_properties(DEPLOY / "broker.conf"))
    nameserver = read_nameserver_settings(read_properties(DEPLOY / "namesrv.conf"))
    assert broker.notes == nameserver.notes == []
    states = {unit(path)["Service"]["StateDirectory"] for path in UNITS}
    assert {
        broker.store.root.relative_to("/var/lib").parts[0],
        nameserver.config.kv_config_path.relative_to("/var/lib").parts[0],
        "contrail-console",
    } == states


def dockerfile_lines() -> list[list[str]]:
    text = DOCKERFILE.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = (line.strip() for line in text.splitlines())
    return [line.split() for line in lines if line and not line.startswith("#")]


@pytest.mark.proves("cli.administration.deploy")
def test_files_that_the_dockerfile_copies_are_there_and_not_ignored() -> None:
    ignored = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text(encoding="utf-8")
    kept = {line[1:] for line in ignored.splitlines() if line.startswith("!")}
    copied = {path for words in dockerfile_lines() if words[0] == "COPY" for path in words[1:-1]}
    assert copied == kept
    assert [path for path in sorted(copied) if not (ROOT / path).exists()] == []


@pytest.mark.proves("console.running.units")
def test_the_image_runs_contrail_as_nobody_special() -> None:
    by_name = {words[0]: words[1:] for words in dockerfile_lines()}
    assert by_name["USER"] == ["contrail"]
    assert json.loads(" ".join(by_name["ENTRYPOINT"])) == ["contrail"]
    assert by_name["VOLUME"] == ["/var/lib/contrail"]
    assert "9870" in by_name["EXPOSE"]
    assert "'contrail-mq[console]'" in DOCKERFILE.read_text(encoding="utf-8")
    assert "CONTRAIL_KERNELS=required" in DOCKERFILE.read_text(encoding="utf-8")


def test_the_commands_of_the_compose_file_have_flags_that_exist() -> None:
    text = (DEPLOY / "docker" / "compose.yaml").read_text(encoding="utf-8")
    commands = [re.findall(r"^ {6}- (\S+)$", block, re.M) for block in text.split("command:")[1:]]
    assert [words[0] for words in commands] == ["namesrv", "broker"]
    for words in commands:
        flags = [word for word in words if not word.endswith(":/var/lib/contrail")]
        require_flags(flags)
        properties = dict(
            word.removeprefix("--set=").split("=", 1) for word in flags if word.startswith("--set=")
        )
        if words[0] == "broker":
            read = read_broker_settings({"storePathRootDir": "/s", **properties}).notes
        else:
            read = read_nameserver_settings(properties).notes
        assert read == []


def shown_names() -> set[str]:
    """Every name that a sample of the servers can have."""
    names = set()
    for metric in EVERY_METRIC:
        is_histogram = metric.kind is MetricKind.HISTOGRAM
        suffixes = ("_bucket", "_sum", "_count") if is_histogram else ("",)
        names |= {metric.name + suffix for suffix in suffixes}
    return names


@pytest.mark.proves("cli.administration.deploy")
@pytest.mark.parametrize("name", ["grafana/contrail.json", "prometheus/alerts.yml"])
def test_dashboard_and_alerts_ask_for_metrics_that_exist(name: str) -> None:
    text = (DEPLOY / name).read_text(encoding="utf-8")
    asked = set(re.findall(r"\b(?:rocketmq|contrail_nameserver|contrail_replication)_\w+", text))
    assert len(asked) >= 5
    assert asked - shown_names() == set()


def test_the_dashboard_is_one_that_grafana_can_import() -> None:
    board = json.loads((DEPLOY / "grafana" / "contrail.json").read_text(encoding="utf-8"))
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(numbers) == len(set(numbers)) > 30
    assert board["uid"] == "contrail"
    places = [panel["gridPos"] for panel in board["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    labels = {label for m in EVERY_METRIC for label in m.labels}
    labels |= {"cluster", "node_id", "node_type", "le", "instance"}
    text = json.dumps([panel.get("targets", []) for panel in board["panels"]])
    used = set(re.findall(r"\{\{(\w+)\}\}", text)) | set(re.findall(r"[{,](\w+)(?:=|!)[~\\]", text))
    assert used - labels == set()
