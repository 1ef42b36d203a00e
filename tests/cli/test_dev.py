"""``contrail dev`` as a developer has it: a process, its first words, and its end by a signal."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from contrail import Admin, Message, Producer
from contrail.errors import ContrailError
from contrail.testing import eventually
from tests.cli.running import check_json, contrail, done, one_line

PATIENCE_S = 120


@pytest.fixture(autouse=True)
def temporary_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for the child's temporary folders, so that left ones are seen."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture(autouse=True, scope="module")
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Children find each module compiled by the first of them, as an installed package has it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("bytecode")))
        yield


@contextmanager
def dev(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "contrail.cli", "dev", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(PATIENCE_S)
        finally:
            if process.poll() is None:
                process.kill()


def ready(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr and process.stderr.read()
    facts = json.loads(line)
    assert isinstance(facts, dict)
    return facts


def bodies(namesrv: str, topic: str) -> list[bytes]:
    _wait_for_topic(namesrv, topic)
    with Admin(namesrv) as admin:
        return [one.body for queue in admin.queues(topic) for one in admin.browse(queue)]


def _wait_for_topic(namesrv: str, topic: str) -> None:
    """The NameServer hears of a topic a moment after the send that made it."""
    with Admin(namesrv) as admin:
        eventually(lambda: topic in admin.topics(), "the topic's route")


@pytest.mark.proves("cli.commands.dev")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_clients_until_a_signal_and_leaves_nothing_behind(
    how: signal.Signals, temporary_folders: Path
) -> None:
    with dev("--port", "0", "--json") as process:
        facts = ready(process)
        check_json("dev", facts)
        assert facts["pid"] == process.pid and facts["temporary"]
        assert Path(facts["folder"]).parent == temporary_folders
        with Producer("developers", facts["namesrv"]) as producer:
            producer.send(Message("orders", b"one coffee"))
        assert bodies(facts["namesrv"], "orders") == [b"one coffee"]
        process.send_signal(how)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert out == "", "one line is all that it prints for programs"
    assert err == "stopping; Ctrl-C once more ends at once\n"
    assert list(temporary_folders.iterdir()) == []


@pytest.mark.proves("cli.commands.dev")
def test_a_folder_is_kept_and_continued(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    for number in range(2):
        with dev("--port", "0", "--folder", str(folder), "--json") as process:
            facts = ready(process)
            assert facts["folder"] == str(folder) and not facts["temporary"]
            with Producer("developers", facts["namesrv"]) as producer:
                producer.send(Message("orders", b"%d" % number))
            found = bodies(facts["namesrv"], "orders")
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0
    assert sorted(found) == [b"0", b"1"]
    assert not (folder / "store" / "abort").exists(), "it was closed cleanly"


def test_settings_of_the_broker_are_taken() -> None:
    with dev("--port", "0", "--json", "--set", "brokerName=mine", "--set", "regionId=desk") as one:
        facts = ready(one)
        assert facts["broker_name"] == "mine"
        with Admin(facts["namesrv"]) as admin:
            assert admin.broker_config("mine")["regionId"] == "desk"


@pytest.mark.proves("cli.commands.dev")
def test_it_prints_the_addresses_and_the_next_steps(temporary_folders: Path) -> None:
    with dev("--port", "0") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().rstrip("\n")]
        while not lines[-1].startswith("  contrail top"):
            line = process.stdout.readline()
            assert line, lines
            lines.append(line.rstrip("\n"))
        text = "\n".join(lines)
        namesrv = next(line for line in lines if "NameServer" in line).split()[1]
        with socket.create_connection(_split(namesrv), timeout=PATIENCE_S):
            pass
    assert f'contrail send -n {namesrv} orders "one coffee"' in text, "its port is not the usual"
    assert f"contrail tail -n {namesrv} orders" in text
    assert f'Producer(group="baristas", namesrv="{namesrv}")' in text
    assert f'producer.setNamesrvAddr("{namesrv}");' in text
    assert f"rocketmq.name-server={namesrv}" in text
    assert str(temporary_folders) in text and "--folder DIR keeps it" in text
    assert "replication" not in text, "there is none without --replicas"


@pytest.mark.proves("replication.pair.dev")
def test_replicas_are_named_with_what_to_try(temporary_folders: Path) -> None:
    with dev("--port", "0", "--replicas", "1") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        while not lines[-1].startswith("  kill -9"):
            lines.append(process.stdout.readline())
            assert lines[-1], lines
    text = "".join(lines)
    assert "slave 1     127.0.0.1:" in text
    assert "contrail replication status -n 127.0.0.1:" in text


@pytest.mark.proves("cli.administration.newcomer")
def test_the_commands_of_the_newcomers_page_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).parents[2] / "docs" / "start" / "index.md"
    text = page.read_text("utf-8")
    blocks = re.findall(r"^```(python|console)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    ran = []
    with dev("--port", "0", "--json") as process:
        namesrv = ready(process)["namesrv"]
        monkeypatch.setenv("NAMESRV_ADDR", namesrv)
        for language, block in blocks:
            if language == "console":
                ran += _run_lines(block, namesrv)
            elif "def test_" in block:
                (tmp_path / "test_orders.py").write_text(block)
            else:
                script = block.replace("127.0.0.1:9876", namesrv)
                subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE_S)
    assert ran == ["send", "send", "tail", "tail", "topic", "group"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_orders.py"]
    tested = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert tested.returncode == 0 and "1 passed" in tested.stdout, tested.stdout


def _run_lines(block: str, namesrv: str) -> list[str]:
    """Run a page's command that needs a broker; skip its steps that build and start."""
    lines = [line[2:] for line in block.splitlines() if line.startswith("$ contrail ")]
    commands = [shlex.split(line)[1:] for line in lines if line != "contrail dev"]
    for arguments in commands:
        done(*arguments)
        if arguments[0] == "send":
            _wait_for_topic(namesrv, arguments[1])
    return [arguments[0] for arguments in commands]


def _split(address: str) -> tuple[str, int]:
    host, port = address.split(":")
    return host, int(port)


@pytest.mark.proves("cli.commands.dev")
def test_the_second_signal_ends_it_at_once_and_the_folder_goes_all_the_same(
    temporary_folders: Path,
) -> None:
    with dev("--port", "0", "--json") as process:
        ready(process)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert process.stderr.readline().startswith("stopping")
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
    # It may have ended before the second signal came.
    assert process.returncode in (0, 128 + signal.SIGTERM)
    assert list(temporary_folders.iterdir()) == []


def failure(*arguments: str) -> str:
    """The one line of a start that is refused."""
    command = [sys.executable, "-m", "contrail.cli", "dev", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (2, ""), done
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("contrail: "), done.stderr
    return lines[0]


def test_a_taken_port_is_named_with_the_fix(temporary_folders: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        told = failure("--port", str(port))
        assert f"port {port} " in told and "--port 0 takes a free one" in told
        assert told.count("choose another") == 1, told
        told = failure("--port", "0", "--broker-port", str(port))
        assert f"port {port} " in told and "--broker-port 0 takes a free one" in told
    assert list(temporary_folders.iterdir()) == []


@pytest.mark.proves("cli.commands.every-command")
def test_wrong_settings_are_one_line(temporary_folders: Path, tmp_path: Path) -> None:
    one_line(contrail("dev", "--set", "brokerName"), 2, "NAME=VALUE")
    assert "say --broker-port" in failure("--port", "0", "--set", "listenPort=1")
    assert "brokerNam" in failure("--port", "0", "--set", "brokerNam=x")
    (tmp_path / "file").write_text("no folder")
    assert "file" in failure("--port", "0", "--folder", str(tmp_path / "file"))
    assert list(temporary_folders.iterdir()) == []


def test_a_folder_that_another_one_uses_is_refused(tmp_path: Path) -> None:
    folder = str(tmp_path / "kept")
    with dev("--port", "0", "--folder", folder, "--json") as process:
        ready(process)
        assert folder in failure("--port", "0", "--folder", folder)


def sent(namesrv: str) -> str:
    with Producer("developers", namesrv, send_timeout_ms=20_000) as producer:
        return producer.send(Message("orders", b"one coffee")).status.name


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A process that nobody has waited for yet runs no more.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.proves("replication.pair.dev")
def test_replicas_are_processes_of_which_a_killed_one_comes_back(temporary_folders: Path) -> None:
    with dev("--port", "0", "--json", "--replicas", "1", "--restart-after", "1") as process:
        facts = ready(process)
        check_json("dev", facts)
        master, slave = facts["replicas"]
        assert (master["broker_id"], slave["broker_id"]) == (0, 1)
        assert master["broker"] == facts["broker"]
        secret = Path(facts["folder"]) / "cluster.secret"
        assert secret.stat().st_mode & 0o777 == 0o600
        eventually(lambda: sent(facts["namesrv"]) == "SEND_OK", "the slave acknowledges")
        os.kill(master["pid"], signal.SIGKILL)
        told_until(process, "broker broker-a:0 has ended (-9)")
        pid = int(told_until(process, "broker broker-a:0 is back as process").split()[-1])
        eventually(lambda: _sends_ok(facts["namesrv"]), "both take messages again")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert is_gone(slave["pid"]) and is_gone(pid)
    assert list(temporary_folders.iterdir()) == []


def told_until(process: subprocess.Popen[str], wanted: str) -> str:
    """The next line on standard error with these words; the NameServer warns there, too."""
    assert process.stderr is not None
    while wanted not in (line := process.stderr.readline()):
        assert line, f"it ended without {wanted!r}"
    return line


def _sends_ok(namesrv: str) -> bool:
    try:
        return sent(namesrv) == "SEND_OK"
    except ContrailError:
        return False


@pytest.mark.proves("replication.pair.dev")
def test_replicas_end_with_a_killed_parent_and_their_folder_is_continued(tmp_path: Path) -> None:
    folder = str(tmp_path / "kept")
    with dev("--port", "0", "--folder", folder, "--replicas", "2", "--json") as process:
        facts = ready(process)
        eventually(lambda: sent(facts["namesrv"]) == "SEND_OK", "a slave acknowledges")
        process.kill()
        process.wait(PATIENCE_S)
    for one in facts["replicas"]:
        eventually(lambda pid=one["pid"]: is_gone(pid), "its brokers end, too")
    with dev("--port", "0", "--folder", folder, "--replicas", "1", "--json") as process:
        again = ready(process)
        assert b"one coffee" in bodies(again["namesrv"], "orders")


@pytest.mark.proves("replication.pair.dev")
def test_settings_that_contradict_replicas_are_one_line(temporary_folders: Path) -> None:
    pair = ("--port", "0", "--replicas", "1")
    assert "by --replicas" in failure(*pair, "--set", "brokerRole=SLAVE")
    assert "inSyncReplicas=3" in failure(
        *pair, "--set", "inSyncReplicas=3", "--set", "totalReplicas=2"
    )
    assert list(temporary_folders.iterdir()) == []


def test_its_help_loads_no_server() -> None:
    script = (
        "import sys; from contrail.cli.app import run; run(['dev', '--help']);"
        "print(*[name for name in sys.modules if name.startswith('contrail.broker')],"
        " file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    assert "--broker-port" in done.stdout
    assert done.stderr.strip() == ""


@pytest.mark.proves("console.running.dev")
def test_a_console_comes_along_with_a_link_that_logs_in_once() -> None:
    with dev("--port", "0", "--console", "--json") as process:
        facts = ready(process)
        check_json("dev", facts)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(facts["console"]["login_link"]) as answer:
            assert answer.url == f"{facts['console']['url']}/"
        with opener.open(f"{facts['console']['url']}/api/v1/session") as answer:
            assert json.load(answer)["role"] == "admin"
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(facts["console"]["login_link"])
    assert process.returncode == 0


@pytest.mark.proves("replication.failover.local")
def test_a_failover_group_goes_on_when_its_leader_is_killed(temporary_folders: Path) -> None:
    assert "exclude each other" in failure("--failover", "--replicas", "1")
    with dev("--port", "0", "--json", "--failover", "--restart-after", "1") as process:
        facts = ready(process)
        check_json("dev", facts)
        leader, *others = facts["replicas"]
        assert {one["broker_id"] for one in facts["replicas"]} == {1, 2, 3}
        assert sent(facts["namesrv"]) == "SEND_OK"
        os.kill(leader["pid"], signal.SIGKILL)
        eventually(lambda: _sends_ok(facts["namesrv"]), "another member takes messages")
        told_until(process, f"broker broker-a:{leader['broker_id']} is back as process")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert all(is_gone(one["pid"]) for one in others)
    assert list(temporary_folders.iterdir()) == []
