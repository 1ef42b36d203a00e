"""The client inside the web servers that people run: uvicorn, and gunicorn with forked workers.

A request that is under way when a server is stopped is answered, no message is lost or consumed
twice, and the servers log no error.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from socket import MSG_PEEK
from typing import Any

import pytest

import contrail
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker, route

APPS = Path(__file__).parent / "web_apps"
PATIENCE_S = 60.0
# gunicorn kills workers that are silent or do not end for this long, without a log line. The test
# waits longer than this for its end: so a killed worker is noticed.
GUNICORN_PATIENCE_S = 200
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)")
COMPLAINT = re.compile(r"Traceback|ERROR|CRITICAL|never (awaited|retrieved)|Task was")
# With gunicorn the other worker prints it.
STOPPING = re.compile("[Ss]hutting down|Worker exiting")
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    name = f"web-{next(_numbers)}"
    Asker(cluster, 0).make_topic(name, read=2, write=2)
    eventually(lambda: route(cluster, name), "the NameServer knows the topic")
    return name


class Server:
    """A web server in a process of its own, which has chosen its port."""

    def __init__(self, command: list[str], folder: Path, **environment: str) -> None:
        # Its output and its own files go to a folder of this server alone.
        self._log = folder / f"server-{next(_numbers)}.log"
        given = {**os.environ, "HOME": str(folder), "PYTHONPATH": import_path(), **environment}
        given.pop("XDG_RUNTIME_DIR", None)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "default", "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=APPS,
                env=given,
            )
        self.port = 0

    def wait_ready(self) -> None:
        eventually(self._find_port, "the server listens")

    def _find_port(self) -> bool:
        assert self._process.poll() is None, self.log
        found = ADDRESS.search(self.log)
        self.port = int(found[1]) if found else 0
        return found is not None

    @property
    def log(self) -> str:
        return self._log.read_text()

    def ask(self, path: str, body: bytes | None = None) -> Any:
        """The body of a request's answer, which must be a success."""
        status, told = self.answer(path, body)
        assert status == 200, (status, told, self.log)
        return told

    def answer(self, path: str, body: bytes | None = None) -> tuple[int, Any]:
        with self.connection() as connection:
            connection.request("GET" if body is None else "POST", path, body)
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    @contextmanager
    def connection(self) -> Iterator[HTTPConnection]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            yield connection
        finally:
            connection.close()

    def begin(self, connection: HTTPConnection, path: str, body_bytes: int) -> None:
        """A request that is under way: the server waits for its body."""
        connection.putrequest("POST", path)
        connection.putheader("Content-Length", str(body_bytes))
        connection.putheader("Expect", "100-continue")
        connection.endheaders()
        assert connection.sock.recv(1, MSG_PEEK) == b"H"

    def finish(self, connection: HTTPConnection, body: bytes) -> Any:
        connection.send(body)
        response = connection.getresponse()
        told = json.loads(response.read())
        assert response.status == 200, (response.status, told, self.log)
        return told

    def stop_during(self, path: str, body: bytes) -> Any:
        """Stop the server while it has a request in hand; returns that request's answer."""
        with self.connection() as connection:
            self.begin(connection, path, len(body))
            self.terminate()
            eventually(lambda: STOPPING.search(self.log), "the server stops")
            return self.finish(connection, body)

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Wait for the server's end, much longer than it should take."""
        alarm = threading.Timer(PATIENCE_S, self._process.kill)
        alarm.start()
        self._process.wait()
        alarm.cancel()

    def require_content(self) -> None:
        """The server ended in time without being killed, and logged no error."""
        # uvicorn ends by the signal that stopped it, once everything is done.
        assert self._process.returncode in (0, -signal.SIGTERM), self.log
        assert not COMPLAINT.search(self.log), self.log

    @property
    def farewells(self) -> list[list[str]]:
        """The messages each process with a lifespan consumed, printed after its clients closed."""
        told = [line for line in self.log.splitlines() if line.startswith("received ")]
        return [json.loads(line.removeprefix("received ")) for line in told]

    @property
    def received(self) -> list[str]:
        return [body for farewell in self.farewells for body in farewell]


def import_path() -> str:
    """Children import the package from this process's path: it may not be installed."""
    return os.pathsep.join([str(APPS), str(Path(contrail.__file__).parents[1])])


@contextmanager
def serving(command: list[str], folder: Path, **environment: str) -> Iterator[Server]:
    server = Server(command, folder, **environment)
    try:
        server.wait_ready()
        yield server
    except BaseException as error:
        error.add_note(server.log)
        raise
    finally:
        server.terminate()
        server.end()
    server.require_content()


def stored(cluster: LocalCluster, topic: str) -> Counter[str]:
    bodies = [body for queue_id in (0, 1) for body in Asker(cluster, 0).bodies(topic, queue_id)]
    return Counter(body.decode() for body in bodies)


# ASGI.


def uvicorn(loop: str) -> list[str]:
    options = ["--host", "127.0.0.1", "--port", "0", "--lifespan", "on", "--loop", loop]
    return ["uvicorn", "asgi_app:app", *options]


@pytest.mark.proves("client.programs.loops")
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_uvicorn_stops_with_every_message_sent_and_its_progress_kept(
    loop: str, cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    where = {"NAMESRV": cluster.namesrv, "TOPIC": topic}
    bodies = [f"{number}" for number in range(40)]
    with serving(uvicorn(loop), tmp_path, **where) as first:
        with ThreadPoolExecutor(8) as threads:
            told = list(threads.map(lambda body: first.ask("/send", body.encode()), bodies))
        assert {answer["loop"] for answer in told} == {loop}
        assert len({answer["client_id"] for answer in told}) == 1
        eventually(lambda: len(first.ask("/received")) == len(bodies), "everything is consumed")
        first.stop_during("/send", b"late")
    with serving(uvicorn(loop), tmp_path, **where) as second:
        second.ask("/send", b"again")
        eventually(lambda: "again" in second.ask("/received"), "the next one goes on")
        eventually(lambda: "late" in first.received + second.ask("/received"), "nothing is lost")
    sent = Counter([*bodies, "late", "again"])
    assert stored(cluster, topic) == sent
    # Each once: the second began where the first had stopped.
    assert Counter(first.received + second.received) == sent


@pytest.mark.parametrize("worker", ["asgi", "uvicorn.workers.UvicornWorker"])
def test_asyncio_workers_of_gunicorn_are_clients_of_their_own(
    worker: str, cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    require_worker(worker)
    command = gunicorn("asgi_app:app", "--worker-class", worker)
    with serving(command, tmp_path, NAMESRV=cluster.namesrv, TOPIC=topic) as server:
        one = server.ask("/send", b"one")
        os.kill(one["pid"], signal.SIGSTOP)
        try:
            other = server.ask("/send", b"other")
        finally:
            os.kill(one["pid"], signal.SIGCONT)
        assert one["pid"] != other["pid"] and one["client_id"] != other["client_id"]
        assert server.stop_during("/send", b"late")["pid"] in (one["pid"], other["pid"])
    assert stored(cluster, topic) == Counter(["one", "other", "late"])
    # Both closed their clients. Messages consumed while queues moved may have come twice.
    assert len(server.farewells) == 2 and set(server.received) <= {"one", "other", "late"}


def require_worker(name: str) -> None:
    module = "gunicorn.workers.gasgi" if name == "asgi" else name.rpartition(".")[0]
    if find_spec(module) is None:
        pytest.skip(f"what is installed has no {module}")


# WSGI.


def gunicorn(app: str, *options: str) -> list[str]:
    usual = ["--config", "gunicorn_conf.py", "--bind", "127.0.0.1:0", "--workers", "2"]
    patience = [f"--{name}={GUNICORN_PATIENCE_S}" for name in ("timeout", "graceful-timeout")]
    return ["gunicorn", *usual, *patience, *options, app]


def wsgi(is_preloaded: bool) -> list[str]:
    return gunicorn("wsgi_app:application", *(["--preload"] if is_preloaded else []))


def ask_both(server: Server) -> list[Any]:
    """The answers of both workers: while one waits for its request's body, the other serves."""
    with server.connection() as waiting:
        server.begin(waiting, "/", len(b"one"))
        other = server.ask("/", b"other")
        return [server.finish(waiting, b"one"), other]


@pytest.mark.proves("client.programs.forks")
@pytest.mark.parametrize(
    ("made_in", "is_preloaded"),
    [
        ("first_request", False),
        ("first_request", True),
        ("post_fork", False),
        ("post_fork", True),
        ("import", False),
    ],
)
def test_each_worker_of_gunicorn_has_a_client_that_was_made_after_the_fork(
    made_in: str, is_preloaded: bool, cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    where = {"NAMESRV": cluster.namesrv, "TOPIC": topic, "MADE_IN": made_in}
    with serving(wsgi(is_preloaded), tmp_path, **where) as server:
        one, other = ask_both(server)
        assert one["pid"] != other["pid"] and one["client_id"] != other["client_id"]
        server.stop_during("/", b"late")
    imports = {"import": 2} if made_in == "import" else {}
    assert stored(cluster, topic) == Counter({"one": 1, "other": 1, "late": 1, **imports})


@pytest.mark.proves("client.programs.forks")
def test_a_client_that_gunicorn_preloaded_names_its_mistake_and_still_works_in_the_master(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    where = {"NAMESRV": cluster.namesrv, "TOPIC": topic, "MADE_IN": "import"}
    with serving(wsgi(True), tmp_path, **where, SAYS_GOODBYE="1") as server:
        status, told = server.answer("/", b"refused")
        assert status == 500
        assert told["error"].startswith("ClientForked: ") and "post_fork" in told["error"]
        assert f"this is its child {told['pid']}" in told["error"]
    assert stored(cluster, topic) == Counter(["import", "goodbye"])
