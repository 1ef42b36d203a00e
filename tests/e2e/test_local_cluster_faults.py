"""A test's cluster does wrong on request, as real clients see it, and is well again after it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail import Admin, Message, Producer
from contrail.clock import ManualClock
from contrail.errors import ContrailError, SendFailed, SendTimedOut
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.testing import LocalBroker, LocalCluster, MovedClock, eventually
from contrail.testing.cluster import LocalNameServer

TOPIC = "orders"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(folder=tmp_path, clock=MovedClock()) as running:
        yield running


@pytest.fixture
def broker(cluster: LocalCluster) -> LocalBroker:
    return cluster.brokers[0]


@pytest.fixture
def producer(cluster: LocalCluster) -> Iterator[Producer]:
    with Producer("faulty", cluster.namesrv, retry_times_when_send_failed=0) as started:
        started.send(Message(TOPIC, b"first"))
        yield started


def bodies(cluster: LocalCluster) -> list[bytes]:
    """The bodies of the stored messages, in no order."""
    with Admin(cluster.namesrv, instance_name="reader") as admin:
        # The NameServer hears of a topic a moment after the send that made it.
        eventually(lambda: TOPIC in admin.topics(), "the topic's route")
        queues = admin.queues(TOPIC)
        return sorted(message.body for queue in queues for message in admin.browse(queue))


@pytest.mark.proves("cli.commands.plugin")
def test_sends_are_refused_with_the_chosen_code_and_none_is_stored(
    cluster: LocalCluster, broker: LocalBroker, producer: Producer
) -> None:
    broker.refuse_sends(ResponseCode.NO_PERMISSION, remark="not today")
    with pytest.raises(SendFailed, match="not today"):
        producer.send(Message(TOPIC, b"refused"))
    broker.clear_faults()
    producer.send(Message(TOPIC, b"second"))
    assert bodies(cluster) == [b"first", b"second"]


def test_as_many_sends_are_refused_as_was_said(
    cluster: LocalCluster, broker: LocalBroker, producer: Producer
) -> None:
    broker.refuse_sends(count=2)
    for _ in range(2):
        with pytest.raises(SendFailed, match="refused by the test"):
            producer.send(Message(TOPIC, b"refused"))
    producer.send(Message(TOPIC, b"second"))
    assert bodies(cluster) == [b"first", b"second"]


def test_a_producer_that_tries_again_gets_past_one_refusal(
    cluster: LocalCluster, broker: LocalBroker
) -> None:
    with Producer("patient", cluster.namesrv) as producer:
        broker.refuse_sends(count=1)
        producer.send(Message(TOPIC, b"in the end"))
    assert bodies(cluster) == [b"in the end"]


def test_other_requests_are_served_while_sends_are_refused(
    cluster: LocalCluster, broker: LocalBroker, producer: Producer
) -> None:
    broker.refuse_sends()
    assert bodies(cluster) == [b"first"]


def test_a_one_way_send_that_is_refused_is_gone(
    cluster: LocalCluster, broker: LocalBroker, producer: Producer
) -> None:
    broker.refuse_sends(count=1)
    producer.send_oneway(Message(TOPIC, b"nobody knows"))
    eventually(lambda: _sends_pass(producer), "the refusal to be used up")
    assert b"nobody knows" not in bodies(cluster)


def _sends_pass(producer: Producer) -> bool:
    try:
        producer.send(Message(TOPIC, b"probe"))
    except SendFailed:
        return False
    return True


@pytest.mark.proves("cli.commands.plugin")
def test_a_late_answer_is_a_timeout_of_a_message_that_is_stored(
    cluster: LocalCluster, broker: LocalBroker, producer: Producer
) -> None:
    broker.delay_answers(60_000)
    with pytest.raises(SendTimedOut):
        producer.send(Message(TOPIC, b"in doubt"), timeout_ms=300)
    broker.clear_faults()
    # Requests over the late connection wait behind its late bytes.
    broker.drop_connections()
    assert bodies(cluster) == [b"first", b"in doubt"]


def test_answers_keep_their_order_and_come_as_late_as_was_said(
    cluster: LocalCluster, broker: LocalBroker, producer: Producer
) -> None:
    broker.delay_answers(150)
    started_s = time.monotonic()
    producer.send(Message(TOPIC, b"slow"))
    assert time.monotonic() - started_s >= 0.15
    broker.delay_answers(0)
    receipts = [producer.send(Message(TOPIC, b"fast")) for _ in range(3)]
    assert len({(one.queue, one.queue_offset) for one in receipts}) == 3


def test_a_lost_answer_leaves_the_message_stored_and_the_next_send_finds_a_way(
    cluster: LocalCluster, broker: LocalBroker, producer: Producer
) -> None:
    broker.lose_answers(1)
    with pytest.raises(SendFailed):
        producer.send(Message(TOPIC, b"in doubt"))
    producer.send(Message(TOPIC, b"second"))
    assert bodies(cluster) == [b"first", b"in doubt", b"second"]


@pytest.mark.proves("cli.commands.plugin")
def test_clients_come_back_after_their_connections_were_dropped(
    cluster: LocalCluster, broker: LocalBroker, producer: Producer
) -> None:
    broker.drop_connections()
    eventually(lambda: _sends_pass(producer), "a new connection")
    assert b"probe" in bodies(cluster)


@pytest.mark.proves("cli.commands.plugin")
def test_a_killed_broker_comes_back_with_what_it_had_acknowledged(
    cluster: LocalCluster, broker: LocalBroker, producer: Producer
) -> None:
    for number in range(50):
        producer.send(Message(TOPIC, b"%02d" % number))
    broker.kill()
    assert (broker.folder / "store" / "abort").exists(), "a kill is no clean end"
    with pytest.raises(ContrailError):
        producer.send(Message(TOPIC, b"to nobody"), timeout_ms=500)
    broker.start()
    eventually(lambda: _sends_pass(producer), "the broker to be found again")
    assert set(bodies(cluster)) >= {b"first", *(b"%02d" % number for number in range(50))}
    assert b"to nobody" not in bodies(cluster)


def test_a_name_server_learns_of_a_kill_only_by_the_connection_that_closes(
    cluster: LocalCluster, broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    gone = f"broker {broker.address!r} of cluster 'DefaultCluster' is gone"
    broker.kill()
    eventually(lambda: gone in caplog.text, "the NameServer to notice")
    assert not _is_known(cluster, broker)
    broker.start()
    assert _is_known(cluster, broker)
    caplog.clear()
    broker.stop()
    assert not _is_known(cluster, broker)
    assert gone not in caplog.text, "who stops says so first"


def _is_known(cluster: LocalCluster, broker: LocalBroker) -> bool:
    answer = cluster.caller.call(cluster.namesrv, RequestCode.GET_BROKER_CLUSTER_INFO)
    return broker.address.encode() in answer.body


@pytest.mark.parametrize(("end", "kept"), [("kill", None), ("stop", 7)])
def test_an_offset_that_was_not_written_yet_dies_with_a_killed_broker_only(
    tmp_path: Path, end: str, kept: int | None
) -> None:
    # The clock stands still: offsets are not written until the end.
    with LocalCluster(folder=tmp_path, clock=ManualClock()) as cluster:
        broker = cluster.brokers[0]
        with Admin(cluster.namesrv) as admin:
            admin.create_topic(TOPIC, cluster="DefaultCluster")
            admin.create_group("readers", cluster="DefaultCluster")
            eventually(lambda: not _is_writing(broker), "the new group to be written")
            eventually(lambda: TOPIC in admin.topics(), "the topic's route")
            queue = admin.queues(TOPIC)[0]
            admin.commit_offset("readers", queue, 7)
            assert admin.committed("readers", queue) == 7
        getattr(broker, end)()
        broker.start()
        with Admin(cluster.namesrv) as admin:
            assert admin.committed("readers", queue) == kept


def _is_writing(broker: LocalBroker) -> bool:
    assert broker.app is not None
    return broker.app.tables.persistence.busy


def test_faults_of_a_broker_that_does_not_run_here_are_refused(
    cluster: LocalCluster, broker: LocalBroker
) -> None:
    broker.kill()
    with pytest.raises(ContrailError, match="broker-a does not run in this process: start it"):
        broker.refuse_sends()


def test_a_move_of_the_clock_evicts_no_running_broker(cluster: LocalCluster) -> None:
    cluster.advance(hours=48)
    assert _is_known(cluster, cluster.brokers[0])


def failing_stop(part: LocalBroker | LocalNameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a part stop, and say that it could not."""
    stop = part.stop

    def fail() -> None:
        stop()
        raise ContrailError(f"{part.address} does not stop")

    monkeypatch.setattr(part, "stop", fail)


def is_over(cluster: LocalCluster) -> bool:
    parts: list[LocalBroker | LocalNameServer] = [*cluster.brokers, *cluster.nameservers]
    is_running = any(part.app is not None for part in parts)
    assert cluster._thread is not None
    loops = [cluster._thread.loop, cluster.caller._thread.loop]
    is_left = is_running or cluster.folder.exists()
    return not is_left and all(loop.is_closed() for loop in loops)


def test_a_part_that_does_not_stop_keeps_nothing_else_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = LocalCluster(brokers=2)
    cluster.start()
    failing_stop(cluster.brokers[0], monkeypatch)
    with pytest.raises(ContrailError, match=f"{cluster.brokers[0].address} does not stop"):
        cluster.stop()
    assert is_over(cluster)


def test_all_that_did_not_stop_is_told_together(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = LocalCluster()
    cluster.start()
    failing_stop(cluster.brokers[0], monkeypatch)
    failing_stop(cluster.nameservers[0], monkeypatch)
    with pytest.raises(ExceptionGroup) as raised:
        cluster.stop()
    assert len(raised.value.exceptions) == 2
    assert is_over(cluster)


@pytest.mark.parametrize("when", ["start", "use"])
def test_an_error_is_not_hidden_by_what_does_not_stop_after_it(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    cluster = LocalCluster()
    failing_stop(cluster.nameservers[0], monkeypatch)

    def fail() -> None:
        raise RuntimeError("the true reason")

    if when == "start":
        monkeypatch.setattr(cluster.brokers[0], "start", fail)
    with pytest.raises(RuntimeError, match="the true reason") as raised, cluster:
        fail()
    assert "does not stop" in raised.value.__notes__[0]
    assert is_over(cluster)
