"""The pytest plugin as its users have it: in test files of their own, run by a pytest of their own.

The inner files use the ordinary blocking clients against the broker of the fixture.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

# Loaded here, so that the inner runs need not load it again each.
import contrail.testing.cluster
import contrail.testing.message_dump  # noqa: F401
from contrail.testing import eventually

pytest_plugins = ["pytester"]

SHARED = """
import time
from datetime import timedelta

import pytest
from contrail import Admin, Message, Producer, PushConsumer, TransactionState


def until(is_so, advance=lambda: None):
    deadline_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline_s, "waited in vain"
        advance()
        time.sleep(0.01)


def send(broker, body, topic="orders", **fields):
    with Producer("senders", broker.namesrv) as producer:
        return producer.send(Message(topic, body, **fields))


def topics(broker):
    with Admin(broker.namesrv) as admin:
        return admin.topics(internal=False)


def bodies(broker, topic="orders"):
    # The NameServer hears of a topic a moment after the send that made it.
    until(lambda: topic in topics(broker))
    with Admin(broker.namesrv) as admin:
        return [one.body for queue in admin.queues(topic) for one in admin.browse(queue)]
"""


def outcome(pytester: pytest.Pytester, text: str, *arguments: str) -> pytest.RunResult:
    """Run a user's test file in this process."""
    pytester.makepyfile(SHARED + text)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments)


@pytest.mark.proves("cli.commands.advance")
def test_a_move_of_the_clock_fires_delays_retries_and_transaction_checks_at_once(
    pytester: pytest.Pytester,
) -> None:
    run = outcome(
        pytester,
        """
def test_delays(contrail_broker):
    send(contrail_broker, b"by level", delay_level=18)
    send(contrail_broker, b"by timer", delay=timedelta(minutes=90))
    seen = []
    with PushConsumer("tables", contrail_broker.namesrv, consume_from_where="first") as consumer:
        consumer.on_message(lambda message: seen.append(message.body))
        consumer.subscribe("orders")
        send(contrail_broker, b"now")
        until(lambda: seen)
        assert seen == [b"now"]
        contrail_broker.advance(hours=2)
        until(lambda: len(seen) == 3, lambda: contrail_broker.advance(ms=1))
    assert set(seen) == {b"now", b"by level", b"by timer"}


def test_retries(contrail_cluster):
    broker = contrail_cluster.brokers[0]
    send(broker, b"again")
    seen = []

    def handle(message):
        seen.append(message.reconsume_times)
        if len(seen) < 4:
            raise ValueError("not yet")

    with PushConsumer("tables", broker.namesrv, consume_from_where="first") as consumer:
        consumer.on_message(handle)
        consumer.subscribe("orders")
        # The first ones come after 10 s, 30 s and a minute: this has no time to wait for them.
        until(lambda: len(seen) == 4, lambda: contrail_cluster.advance(hours=2))
    assert seen == [0, 1, 2, 3]


def test_transaction_checks(contrail_broker):
    checked = []

    def checker(message):
        checked.append(message.body)
        return TransactionState.COMMIT

    with Producer("payers", contrail_broker.namesrv, transaction_checker=checker) as producer:
        with producer.transaction(Message("orders", b"half")) as transaction:
            transaction.unknown()
        assert not checked
        until(lambda: checked, lambda: contrail_broker.advance(hours=2))
    with PushConsumer("tables", contrail_broker.namesrv, consume_from_where="first") as consumer:
        consumer.subscribe("orders")
        assert next(iter(consumer)).body == b"half"
    assert checked == [b"half"] * len(checked)
""",
    )
    run.assert_outcomes(passed=3)


@pytest.mark.proves("cli.commands.plugin")
def test_every_test_has_a_cluster_of_its_own_and_markers_say_of_what(
    pytester: pytest.Pytester,
) -> None:
    run = outcome(
        pytester,
        """
@pytest.mark.parametrize("number", [1, 2])
def test_fresh(contrail_broker, number):
    assert topics(contrail_broker) == []
    send(contrail_broker, b"one coffee")
    assert bodies(contrail_broker) == [b"one coffee"]


def test_one_cluster_for_both_fixtures(contrail_broker, contrail_cluster):
    assert contrail_cluster.brokers == [contrail_broker]
    assert contrail_broker.address.startswith("127.0.0.1:")


@pytest.mark.contrail(brokers=3, nameservers=2, properties={"defaultTopicQueueNums": "2"})
class TestMany:
    def test_masters(self, contrail_cluster):
        with Admin(contrail_cluster.namesrv) as admin:
            assert len(admin.brokers()) == 3
            assert len(admin.name_servers) == 2
        receipt = send(contrail_cluster, b"one coffee")
        with Admin(contrail_cluster.namesrv) as admin:
            assert admin.broker_config(receipt.queue.broker_name)["defaultTopicQueueNums"] == "2"

    @pytest.mark.contrail(brokers=1)
    def test_the_nearer_marker_is_stronger(self, contrail_cluster):
        assert len(contrail_cluster.brokers) == 1
        assert len(contrail_cluster.nameservers) == 2


def test_two_clusters(contrail_cluster_factory):
    one, other = contrail_cluster_factory(), contrail_cluster_factory(brokers=2)
    send(one, b"one coffee")
    assert bodies(one) == [b"one coffee"]
    assert topics(other) == []
""",
        "--strict-markers",
    )
    run.assert_outcomes(passed=6)


@pytest.mark.proves("cli.commands.plugin")
def test_faults_of_the_fixture_are_met_by_a_real_client(pytester: pytest.Pytester) -> None:
    run = outcome(
        pytester,
        """
from contrail.errors import SendFailed

def test_refused_then_killed_and_restarted(contrail_broker):
    send(contrail_broker, b"one")
    contrail_broker.refuse_sends()
    with pytest.raises(SendFailed):
        send(contrail_broker, b"refused")
    contrail_broker.clear_faults()
    contrail_broker.kill()
    contrail_broker.start()
    assert bodies(contrail_broker) == [b"one"]


@pytest.mark.contrail(in_children=True, properties={"flushDiskType": "SYNC_FLUSH"})
def test_a_child_is_killed_for_real(contrail_broker):
    send(contrail_broker, b"one")
    contrail_broker.kill()
    contrail_broker.start()
    assert bodies(contrail_broker) == [b"one"]
""",
    )
    run.assert_outcomes(passed=2)


@pytest.mark.proves("replication.pair.dev")
def test_a_marked_cluster_has_slaves_that_are_cut_off_and_take_over_reads(
    pytester: pytest.Pytester,
) -> None:
    run = outcome(
        pytester,
        """
# One queue: a group can begin at a slave only in queues that it has an offset of.
SETTINGS = {
    "brokerRole": "SYNC_MASTER",
    "slaveReadEnable": "true",
    "defaultTopicQueueNums": "1",
}


def next_body(broker):
    with PushConsumer("tables", broker.namesrv, consume_from_where="first") as consumer:
        consumer.subscribe("orders")
        message = next(iter(consumer))
        message.ack()
        return message.body


@pytest.mark.contrail(slaves=1, properties=SETTINGS)
def test_cut_off_and_killed(contrail_cluster):
    master, slave = contrail_cluster.brokers[0], contrail_cluster.slaves[0]
    contrail_cluster.wait_for_slaves()
    assert send(master, b"on both").status.name == "SEND_OK"
    assert next_body(master) == b"on both"
    slave.cut_off()
    assert send(master, b"alone").status.name == "SLAVE_NOT_AVAILABLE"
    slave.rejoin()
    contrail_cluster.wait_for_slaves()
    master.kill()
    assert next_body(slave) == b"alone"


def test_a_factory_makes_slaves_too(contrail_cluster_factory):
    cluster = contrail_cluster_factory(slaves=2)
    assert [one.broker_id for one in cluster.slaves] == [1, 2]
    cluster.wait_for_slaves()
""",
    )
    run.assert_outcomes(passed=2)


@pytest.mark.proves("cli.commands.failing-report")
def test_a_failed_test_says_what_its_cluster_holds_and_a_passed_one_does_not(
    pytester: pytest.Pytester,
) -> None:
    run = outcome(
        pytester,
        """
def test_fails(contrail_broker):
    for number in range(9):
        send(contrail_broker, b"order %d " % number + b"x" * 500, keys=[f"o-{number}"], tags="new")
    with PushConsumer("tables", contrail_broker.namesrv, consume_from_where="first") as consumer:
        consumer.subscribe("orders")
        next(iter(consumer)).ack()
    contrail_broker.refuse_sends()
    assert "coffee" == "tea"


def test_fails_with_a_dead_broker(contrail_broker):
    send(contrail_broker, b"one coffee")
    contrail_broker.kill()
    assert "dead" == "alive"


def test_passes(contrail_broker):
    send(contrail_broker, b"nobody reads this")
""",
        "-rA",
    )
    run.assert_outcomes(passed=1, failed=2)
    run.stdout.fnmatch_lines(
        [
            "*contrail: what the cluster holds*",
            "broker-a 127.0.0.1:* runs",
            "topic orders",
            "  broker-a queue *: 0 to *",
            "    @* keys=o-* tags=new b'order * …* bytes",
            "group tables: orders broker-a queue * at *, lag *",
            "*contrail: what the cluster holds*",
            "broker-a 127.0.0.1:* does not run",
        ]
    )
    assert "nobody reads this" not in run.stdout.str().replace('send(contrail_broker, b"nobody', "")
    assert "x" * 200 not in run.stdout.str(), "bodies are cut"


def test_a_marker_without_names_is_explained(pytester: pytest.Pytester) -> None:
    run = outcome(
        pytester,
        "@pytest.mark.contrail(3)\ndef test_wrong(contrail_broker): pass\n",
    )
    run.assert_outcomes(errors=1)
    run.stdout.fnmatch_lines(["*takes names only: contrail(brokers=1, *"])


@pytest.mark.proves("cli.administration.newcomer")
def test_the_examples_of_the_guide_run(pytester: pytest.Pytester) -> None:
    page = Path(__file__).parents[2] / "docs" / "guide" / "test-with-a-cluster.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 8
    pytester.makepyfile("\n\n".join(blocks))
    run = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    run.assert_outcomes(passed=5)


def test_loading_the_plugin_brings_nothing_of_contrail_along() -> None:
    script = (
        "import sys, contrail.testing.pytest_plugin\n"
        "print(*sorted(name for name in sys.modules if name.startswith('contrail')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["contrail", "contrail.testing", "contrail.testing.pytest_plugin"]


@pytest.mark.proves("cli.commands.failing-report")
def test_a_hundred_starts_leave_nothing_behind(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    text = """
@pytest.mark.parametrize("number", range({count}))
def test_start(contrail_broker, number):
    assert contrail_broker.address
"""
    # The first tests load modules and set things up once.
    outcome(pytester, text.format(count=5)).assert_outcomes(passed=5)
    before = Holdings()
    outcome(pytester, text.format(count=100)).assert_outcomes(passed=100)
    # Threads end on their own time once they were told to.
    eventually(lambda: Holdings().is_no_more_than(before), "files and threads are let go of")
    assert list(tmp_path.iterdir()) == []
    # One broker that stayed would hold some megabytes.
    assert Holdings().kilobytes - before.kilobytes < 150_000


class Holdings:
    """The resources of this process that can leak."""

    def __init__(self) -> None:
        gc.collect()
        self.files = len(os.listdir("/proc/self/fd"))
        self.threads = threading.active_count()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.kilobytes = pages * os.sysconf("SC_PAGE_SIZE") // 1024

    def is_no_more_than(self, other: Holdings) -> bool:
        return self.files <= other.files and self.threads <= other.threads
