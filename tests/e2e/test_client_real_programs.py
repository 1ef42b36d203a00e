"""The client in whole programs, each a process of its own: loops, forks, signals and exits.

Every warning in them is an error, and text on stderr fails the test.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

import pytest

import contrail
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker, route

PROGRAMS = Path(__file__).parent / "client_programs"
PATIENCE_S = 120.0
# Two cores and many neighbours: this counts as "at once". A pull is held for longer, and every
# other wait of a program lasts a minute and more.
PROMPT_S = 14.0
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    name = f"programs-{next(_numbers)}"
    Asker(cluster, 0).make_topic(name, read=2, write=2)
    eventually(lambda: route(cluster, name), "the NameServer knows the topic")
    return name


def command(name: str, *arguments: str, warnings: str = "error") -> list[str]:
    return [sys.executable, "-W", warnings, str(PROGRAMS / f"{name}.py"), *arguments]


def run(name: str, *arguments: str, is_clean: bool = True) -> str:
    """A program's output; it ends with 0 and, if ``is_clean``, with an empty stderr."""
    done = subprocess.run(
        command(name, *arguments, warnings="error" if is_clean else "default"),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    if is_clean:
        assert done.stderr == ""
    return done.stdout


# Loops.


@pytest.mark.proves("client.programs.loops", "client.programs.asyncio-run")
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_asyncio_run_for_every_call(loop: str, cluster: LocalCluster, topic: str) -> None:
    # Python itself warns of clients that a program never closed.
    assert run("asyncio_runs", loop, cluster.namesrv, topic, is_clean=False) == "done\n"


@pytest.mark.proves("client.programs.loops")
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_an_application_with_a_lifespan(loop: str, cluster: LocalCluster, topic: str) -> None:
    assert run("lifespan", loop, cluster.namesrv, topic) == "done\n"


# Forks.


@pytest.mark.proves("client.programs.forks")
@pytest.mark.parametrize(
    ("style", "leaving"),
    [
        ("blocking", "exit"),
        ("blocking", "multiprocessing"),
        ("asyncio", "_exit"),
        ("asyncio", "multiprocessing"),
        ("uvloop", "multiprocessing"),
    ],
)
def test_a_client_in_a_child_of_a_fork_raises_and_its_parent_goes_on(
    style: str, leaving: str, cluster: LocalCluster, topic: str
) -> None:
    assert run("forks", style, leaving, cluster.namesrv, topic) == "done\n"


@pytest.mark.proves("client.programs.forks")
def test_a_prefork_server_makes_its_clients_in_the_workers(
    cluster: LocalCluster, topic: str
) -> None:
    assert run("prefork", cluster.namesrv, topic) == "done\n"
    bodies = [body for queue_id in (0, 1) for body in Asker(cluster, 0).bodies(topic, queue_id)]
    for worker in range(4):
        assert sum(body.startswith(b"worker %d:" % worker) for body in bodies) == 20
    assert bodies.count(b"master") == 5


# Ctrl-C.


class Interrupted:
    """A program that can be interrupted where it says so."""

    def __init__(self, where: str, cluster: LocalCluster, topic: str) -> None:
        self._process = subprocess.Popen(
            command("interrupts", where, cluster.namesrv, topic),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(errors := TemporaryFile("w+")),  # noqa: SIM115
            text=True,
        )
        self._errors = errors
        self.lines: list[str] = []

    def until(self, line: str) -> None:
        assert self._process.stdout is not None
        for read in self._process.stdout:
            self.lines.append(read.strip())
            if self.lines[-1] == line:
                return
        raise AssertionError(f"no {line!r}: {self.lines}, {self.end()}")

    def until_asleep(self) -> None:
        """Wait until all threads of the program are blocked, not running."""
        asleep_count = 0
        deadline_s = time.monotonic() + PATIENCE_S
        while asleep_count < 5:
            asleep_count = asleep_count + 1 if self._is_asleep() else 0
            assert time.monotonic() < deadline_s, "it never waits"
            threading.Event().wait(0.02)

    def _is_asleep(self) -> bool:
        paths = Path(f"/proc/{self._process.pid}/task").glob("*/stat")
        try:
            return all(path.read_text().rpartition(") ")[2].startswith("S") for path in paths)
        except OSError:
            # A thread that has just ended.
            return False

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> str:
        """The program's stderr, once it has ended."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        alarm = threading.Timer(PATIENCE_S, process.kill)
        alarm.start()
        with self._errors, process.stdin, process.stdout:
            self.lines += process.stdout.read().splitlines()
            status = process.wait()
            alarm.cancel()
            self._errors.seek(0)
            errors = self._errors.read()
        assert status == 0, errors
        return errors

    @property
    def got(self) -> list[str]:
        return [line.removeprefix("got ") for line in self.lines if line.startswith("got ")]

    @property
    def took_s(self) -> float:
        """Time from the interrupt to the end of the program's ``with`` blocks."""
        return float(self.lines[-1].removeprefix("interrupted "))


def send_numbers(cluster: LocalCluster, topic: str, count: int) -> None:
    with contrail.Producer("numbers", cluster.namesrv) as producer:
        for number in range(count):
            producer.send(contrail.Message(topic, b"%d" % number))


@pytest.mark.proves("client.programs.interrupts")
@pytest.mark.parametrize(
    ("where", "is_in_hand"),
    [
        ("blocking_loop", True),
        ("asyncio_loop", True),
        ("blocking_waiting", False),
        ("blocking_run", False),
        ("blocking_poll", False),
    ],
)
def test_an_interrupted_consumer_ends_at_once_keeps_its_offset_and_loses_no_message(
    where: str, is_in_hand: bool, cluster: LocalCluster, topic: str
) -> None:
    send_numbers(cluster, topic, 3)
    sent_back_before = Asker(cluster).sent_back_count()
    program = Interrupted(where, cluster, topic)
    program.until("ready")
    program.until_asleep()
    program.interrupt()
    errors = program.end()
    assert sorted(program.got) == ["0", "1", "2"]
    assert program.took_s < PROMPT_S
    if not is_in_hand:
        assert errors == ""
    # A message in hand was not acknowledged: it comes again, and the offset is past it.
    assert Asker(cluster).sent_back_count() - sent_back_before == (1 if is_in_hand else 0)
    with contrail.Admin(cluster.namesrv) as admin:
        places = admin.committed_offsets(where, topic)
    assert sum(place or 0 for place in places.values()) == 3


@pytest.mark.proves("client.programs.interrupts")
def test_an_interrupted_send_leaves_a_producer_that_works() -> None:
    with LocalCluster(in_children=True) as cluster:
        broker = cluster.brokers[0].pid
        Asker(cluster, 0).make_topic("orders", read=1, write=1)
        eventually(lambda: route(cluster, "orders"), "the NameServer knows the topic")
        program = Interrupted("blocking_send", cluster, "orders")
        program.until("ready")
        os.kill(broker, signal.SIGSTOP)
        try:
            program.say("stopped")
            program.until("sending")
            program.until_asleep()
            began_s = time.monotonic()
            program.interrupt()
            program.until("interrupted")
            assert time.monotonic() - began_s < PROMPT_S
        finally:
            os.kill(broker, signal.SIGCONT)
        program.say("continued")
        assert program.end() == ""
        assert Asker(cluster, 0).bodies("orders")[-1] == b"after"


# Exits and imports.


@pytest.mark.parametrize("what", ["producer", "pull", "loop", "handler"])
def test_a_program_that_closes_no_client_ends_quickly_and_quietly(
    what: str, cluster: LocalCluster, topic: str
) -> None:
    began_s = time.monotonic()
    sent_back_before = Asker(cluster).sent_back_count()
    assert run("exits", what, cluster.namesrv, topic).splitlines()[0] == "done"
    assert time.monotonic() - began_s < 2 * PROMPT_S
    # The handler was not made to fail by the end of its threads.
    assert Asker(cluster).sent_back_count() == sent_back_before


def test_an_exit_waits_for_a_handler_at_work(cluster: LocalCluster, topic: str) -> None:
    assert run("exits", "with_a_handler_at_work", cluster.namesrv, topic) == "done\nhandled\n"


@pytest.mark.parametrize(
    "what", ["with_a_hung_handler", "with_a_hung_handler_of_a_closed_consumer"]
)
def test_a_hung_handler_does_not_keep_the_program_from_ending(
    what: str, cluster: LocalCluster, topic: str
) -> None:
    # The program warns of the handler on stderr.
    assert run("exits", what, cluster.namesrv, topic, is_clean=False) == "done\n"


def test_a_plain_handler_may_close_its_own_consumer(cluster: LocalCluster, topic: str) -> None:
    assert run("exits", "with_a_handler_that_closes", cluster.namesrv, topic) == "0\ndone\n"


def test_a_call_after_the_exit_of_the_client_raises_client_closed(
    cluster: LocalCluster, topic: str
) -> None:
    lines = run("exits", "late", cluster.namesrv, topic).splitlines()
    assert lines == ["done", "the interpreter is exiting, and the client with it"]


def test_a_program_that_forgets_an_asyncio_client_ends(cluster: LocalCluster, topic: str) -> None:
    # Python itself warns of the sockets.
    assert run("exits", "asyncio_forgotten", cluster.namesrv, topic, is_clean=False) == "done\n"


def test_a_handler_that_exits_does_not_stop_the_client(cluster: LocalCluster, topic: str) -> None:
    arguments = ("with_a_handler_that_exits", cluster.namesrv, topic)
    assert run("exits", *arguments, is_clean=False) == "done\n"


IMPORTS = """
import sys, threading
opened = []
sys.addaudithook(lambda event, given: opened.append(given) if event == "open" else None)
sys.dont_write_bytecode = True
import contrail, contrail.aio, logging
for name in contrail.__all__:
    getattr(contrail, name)
written = [given for given in opened if isinstance(given[1], str) and set(given[1]) & set("wax+")]
print(written, threading.active_count(), logging.getLogger().handlers)
print([name for name in logging.root.manager.loggerDict if name.startswith("contrail")
       and logging.getLogger(name).handlers])
"""


@pytest.mark.proves("client.shared.quiet-import")
def test_importing_writes_no_file_starts_no_thread_and_sets_up_no_logging(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORTS],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        timeout=PATIENCE_S,
    )
    assert (done.stdout, done.stderr) == ("[] 1 []\n[]\n", "")
    assert list(tmp_path.iterdir()) == []
