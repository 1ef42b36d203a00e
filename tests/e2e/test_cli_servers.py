"""``contrail namesrv`` and ``contrail broker`` as people run them: processes of their own."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from contrail.errors import CallFailed
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.testing.caller import BlockingCaller
from contrail.testing.cluster import free_port, free_port_pair
from contrail.wire.addresses import outgoing_address
from tests.fault.campaigns.io_errors import build_shim

PATIENCE_S = 120.0
SMALL = [
    "--set",
    "mappedFileSizeCommitLog=1048576",
    "--set",
    "maxHashSlotNum=1000",
    "--set",
    "maxIndexNum=4000",
]


class Process:
    """A server started by the command line; its two streams go to files."""

    def __init__(
        self,
        *arguments: str | Path,
        folder: Path,
        home: Path | None = None,
        environment: Mapping[str, str] | None = None,
        open_files: int | None = None,
    ) -> None:
        self._out = folder / "out.txt"
        self._err = folder / "err.txt"
        command = [sys.executable, "-m", "contrail.cli", *map(str, arguments)]
        if open_files is not None:
            command = ["sh", "-c", f'ulimit -n {open_files} && exec "$@"', "sh", *command]
        variables = {**os.environ, "HOME": str(home or folder), **(environment or {})}
        variables.pop("NAMESRV_ADDR", None)
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=variables
            )

    @property
    def stdout(self) -> str:
        return self._out.read_text(encoding="utf-8")

    @property
    def stderr(self) -> str:
        return self._err.read_text(encoding="utf-8")

    def wait_ready(self) -> str:
        """The address of the line that says so."""
        deadline = time.monotonic() + PATIENCE_S
        while " is ready at " not in self.stdout or not self.stdout.endswith("\n"):
            assert self._process.poll() is None, self.stderr
            assert time.monotonic() < deadline, self.stderr
            threading.Event().wait(0.02)
        return self.stdout.split()[-1]

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        if self._process.poll() is None:
            self._process.send_signal(how)
        return self.wait_end()

    def wait_end(self) -> int:
        return self._process.wait(PATIENCE_S)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    processes: list[Process] = []

    def start(*arguments: str | Path, **settings: Any) -> Process:
        folder = tmp_path / f"process-{len(processes)}"
        folder.mkdir()
        processes.append(Process(*arguments, folder=folder, **settings))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()


def write(path: Path, properties: Mapping[str, object]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return path


def send(address: str) -> None:
    """Send one message and wait for an answer, whatever it says."""
    with BlockingCaller() as caller, suppress(CallFailed):
        caller.call(address, RequestCode.SEND_MESSAGE, send_fields("orders"), b"one coffee")


def send_fields(topic: str) -> dict[str, str]:
    return {
        "producerGroup": "senders",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1760000000000",
        "flag": "0",
    }


@pytest.mark.proves("broker.running.advertised-address", "broker.running.graceful-stop")
def test_a_broker_says_where_it_is_registers_and_stops_cleanly(
    started: Any, tmp_path: Path
) -> None:
    names = started("namesrv", "--folder", tmp_path / "names", "--port", free_port())
    names_address = names.wait_ready()
    store, port = tmp_path / "store", free_port_pair()
    broker = started("broker", "-n", names_address, "--folder", store, "--port", port, *SMALL)
    assert broker.wait_ready() == f"127.0.0.1:{port}"
    for line in (
        "advertised address: 127.0.0.1 (only this host is listened to",
        f"listening address: 127.0.0.1, port {port}, fast port {port - 2}",
        f"store: {store}",
        "flush: SYNC_FLUSH",
        f"NameServers: {names_address}",
        "event loop: ",
    ):
        assert line in broker.stderr
    caller = BlockingCaller()
    try:
        info = caller.call(names_address, RequestCode.GET_BROKER_CLUSTER_INFO).body
    finally:
        caller.close()
    assert f"127.0.0.1:{port}".encode() in info
    assert (store / "abort").exists()
    assert broker.end() == 0
    assert not (store / "abort").exists()
    assert names.end(signal.SIGINT) == 0
    assert "Traceback" not in broker.stderr + names.stderr


def test_a_name_server_that_never_answers_holds_up_neither_the_start_nor_the_others(
    started: Any, tmp_path: Path
) -> None:
    names = started("namesrv", "--folder", tmp_path / "names", "--port", free_port())
    names_address = names.wait_ready()
    with socket.create_server(("127.0.0.1", 0)) as silent, BlockingCaller() as caller:
        silent_address = f"127.0.0.1:{silent.getsockname()[1]}"
        broker = started(
            "broker", "-n", f"{silent_address};{names_address}", "--folder", tmp_path / "store",
            "--port", "0", "--set", "registerBrokerTimeoutMills=3600000", *SMALL,
        )  # fmt: skip
        address = broker.wait_ready()
        assert f"NameServer {silent_address} has not answered yet" in broker.stderr
        info = caller.call(names_address, RequestCode.GET_BROKER_CLUSTER_INFO).body
        assert address.encode() in info
        # A topic that is made later reaches the one that answers.
        caller.call(address, RequestCode.SEND_MESSAGE, send_fields("later"), b"one coffee")
        wait_for_route(caller, names_address, "later")
        assert broker.end() == 0
    assert "Traceback" not in broker.stderr


def wait_for_route(caller: BlockingCaller, names_address: str, topic: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while caller.call(names_address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).code:
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


def test_more_silent_connections_than_descriptors_do_not_harm_the_store(
    started: Any, tmp_path: Path
) -> None:
    broker = started(
        "broker", "--folder", tmp_path / "store", "--port", "0",
        "--set", "contrailOpenFilesMax=80", *SMALL, open_files=380,
    )  # fmt: skip
    address = broker.wait_ready()
    assert "only 100 connections are accepted" in broker.stderr
    host, _, port = address.rpartition(":")
    with BlockingCaller() as caller, ExitStack() as silent:
        for number in range(8):
            for _ in range(60):
                silent.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))
            fields = send_fields(f"orders-{number}")
            answer = caller.call(address, RequestCode.SEND_MESSAGE, fields, b"one coffee")
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert broker.end() == 0, broker.stderr
    assert "Traceback" not in broker.stderr


def test_a_taken_port_and_a_store_in_use_are_one_line_and_exit_code_2(
    started: Any, tmp_path: Path
) -> None:
    store, port = tmp_path / "store", free_port_pair()
    first = started("broker", "--folder", store, "--port", port, *SMALL)
    first.wait_ready()
    second = started("broker", "--folder", tmp_path / "other", "--port", port, *SMALL)
    third = started("broker", "--folder", store, "--port", "0", *SMALL)
    names = started("namesrv", "--folder", tmp_path / "names", "--port", port)
    assert [process.wait_end() for process in (second, third, names)] == [2, 2, 2]
    for process in (second, names):
        last = process.stderr.splitlines()[-1]
        assert last.startswith(f"contrail: 127.0.0.1:{port} cannot be listened on")
        assert "--port" in last
    assert third.stderr.splitlines()[-1].startswith(f"contrail: {store} is open")
    assert "Traceback" not in second.stderr + third.stderr + names.stderr
    assert first.end() == 0


def test_a_broker_whose_disk_refuses_a_write_ends_with_exit_code_3(
    started: Any, tmp_path: Path
) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc) to build the fault library with")
    fault = {
        "LD_PRELOAD": str(build_shim(tmp_path)),
        "FAULT_OPERATION": "fdatasync",
        "FAULT_PATH": "commitlog",
        "FAULT_NTH": "1",
        "FAULT_MODE": "eio",
        "FAULT_LOG": str(tmp_path / "struck"),
    }
    store = tmp_path / "store"
    broker = started("broker", "--folder", store, "--port", "0", *SMALL, environment=fault)
    send(broker.wait_ready())
    assert broker.wait_end() == 3, broker.stderr
    assert (tmp_path / "struck").exists()
    assert "the server has failed and ends" in broker.stderr
    assert (store / "abort").exists()


def test_a_damaged_store_is_refused_with_exit_code_2(started: Any, tmp_path: Path) -> None:
    store = tmp_path / "store"
    broker = started("broker", "--folder", store, "--port", "0", *SMALL)
    send(broker.wait_ready())
    assert broker.end() == 0
    segment = next((store / "commitlog").iterdir())
    data = bytearray(segment.read_bytes())
    data[data.index(b"one coffee")] ^= 1
    segment.write_bytes(data)
    again = started("broker", "--folder", store, "--port", "0", *SMALL)
    assert again.wait_end() == 2, again.stderr
    assert "Traceback" not in again.stderr
    last = again.stderr.splitlines()[-1]
    assert last.startswith("contrail: the commit log is damaged from byte 0")
    assert "contrail store recover" in last


@pytest.mark.proves("broker.running.apaches-files", "broker.running.unknown-keys")
def test_rocketmqs_file_is_read_unknown_names_are_warned_about_and_logs_are_json(
    started: Any, tmp_path: Path
) -> None:
    conf = write(
        tmp_path / "broker.conf",
        {
            "brokerName": "from-the-file",
            "listenPort": 1234,
            "flushDiskType": "ASYNC_FLUSH",
            "mappedFileSizeCommitLog": 1 << 20,
            "sendThreadPoolNums": 16,
        },
    )
    broker = started("broker", "-c", conf, "--port", "0", "--log-format", "json", *SMALL)
    broker.wait_ready()
    assert broker.end() == 0
    lines = [json.loads(line) for line in broker.stderr.splitlines()]
    assert all(line.keys() >= {"time", "level", "logger", "message"} for line in lines)
    said = {line["level"]: "" for line in lines}
    for line in lines:
        said[line["level"]] += line["message"] + "\n"
    assert "sendThreadPoolNums is unknown here and has no effect" in said["WARNING"]
    assert "broker from-the-file of DefaultCluster" in said["INFO"]
    assert f"settings: {conf}" in said["INFO"]
    assert "flush: ASYNC_FLUSH" in said["INFO"]
    assert "process-0/store" in said["INFO"]


@pytest.mark.proves("broker.running.dangerous-keys")
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["broker", "--set", "brokerRole=SLAVE"], "brokerRole=SLAVE is refused"),
        (["broker", "--set", "flushDiskType=SOMETIMES"], "SYNC_FLUSH or ASYNC_FLUSH"),
        (["broker", "-c", "no-such.conf"], "no-such.conf"),
        (["broker", "-n", "a..b:9876"], "namesrvAddr=a..b:9876 is refused"),
        (["broker", "-n", "127.0.0.1:1,127.0.0.1:2"], "host:port;host:port"),
        (["namesrv", "--set", "enableControllerInNamesrv=true"], "there is no controller"),
        (["namesrv", "--set", "tls.server.mode=enforcing"], "certPath"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_invalid_settings_are_refused_by_name_before_the_start(
    started: Any, arguments: list[str], named: str
) -> None:
    process = started(*arguments)
    assert process.wait_end() == 2
    assert len(process.stderr.splitlines()) == 1
    assert process.stderr.startswith("contrail: ") and named in process.stderr


def test_the_printed_settings_are_a_file_that_says_the_same(started: Any, tmp_path: Path) -> None:
    first = started("broker", "-p", "--port", "5", "--set", "brokerName=b", home=tmp_path)
    assert first.wait_end() == 0
    conf = tmp_path / "again.conf"
    conf.write_text(first.stdout)
    assert f"storePathRootDir={tmp_path / 'store'}\n" in first.stdout
    second = started("broker", "-c", conf, "--print-config")
    assert second.wait_end() == 0
    assert second.stdout == first.stdout
    assert not (tmp_path / "store").exists()


def test_settings_kept_by_a_nameserver_are_read_at_its_next_start(
    started: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "names"
    folder.mkdir()
    write(folder / "namesrv.properties", {"orderMessageEnable": "true", "rocketmqHome": "/opt"})
    names = started("namesrv", "--folder", folder, "--port", "0")
    names.wait_ready()
    assert names.end() == 0
    assert f"settings: {folder / 'namesrv.properties'}" in names.stderr
    assert "rocketmqHome is ignored" in names.stderr


@pytest.mark.proves("cli.small-rules.server-start")
@pytest.mark.parametrize("server", ["namesrv", "broker", "dev"])
def test_interpreted_kernels_are_warned_about_at_the_start(
    started: Any, tmp_path: Path, server: str
) -> None:
    ports = ["--port", "0", *(["--broker-port", "0"] if server == "dev" else [])]
    pure = {"CONTRAIL_KERNELS": "pure"}
    process = started(server, "--folder", tmp_path / server, *ports, environment=pure)
    deadline_s = time.monotonic() + PATIENCE_S
    while "not compiled" not in process.stderr:
        assert time.monotonic() < deadline_s, process.stderr
        threading.Event().wait(0.02)
    (line,) = [line for line in process.stderr.splitlines() if "not compiled" in line]
    assert "WARNING" in line and "slower" in line and "contrail version" in line


def test_a_log_file_takes_the_lines_of_standard_error(started: Any, tmp_path: Path) -> None:
    log = tmp_path / "names.log"
    names = started(
        "namesrv", "--folder", tmp_path, "--port", "0", "--log-file", log, "--log-level", "debug"
    )
    names.wait_ready()
    assert names.end() == 0
    assert names.stderr == ""
    assert "listening address: 127.0.0.1" in log.read_text(encoding="utf-8")


def test_the_outgoing_address_is_one_of_this_host() -> None:
    found = outgoing_address()
    if found is None:
        pytest.skip("no route leads out of this host")
    assert ipaddress.ip_address(found).version == 4
    with socket.socket() as probe:
        probe.bind((found, 0))


def test_a_log_file_in_a_folder_that_is_not_there_is_refused(started: Any, tmp_path: Path) -> None:
    log = tmp_path / "nope" / "names.log"
    names = started("namesrv", "--folder", tmp_path, "--port", "0", "--log-file", log)
    assert names.wait_end() == 2
    assert f"there is no folder {log.parent}" in names.stderr
    assert not log.parent.exists()
