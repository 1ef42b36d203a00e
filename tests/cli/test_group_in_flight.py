"""``contrail group inflight``, ``return`` and ``ack``, and popped messages in a message's story."""

from __future__ import annotations

import pytest

from contrail import Message, PopConsumer, Producer
from contrail.testing import LocalCluster, eventually
from tests.cli.running import contrail, done, one_line, valid_json


@pytest.mark.proves("kinds.pop.in-flight", "kinds.pop.operators")
def test_popped_messages_are_listed_returned_and_acknowledged(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    done("topic", "create", "popping", "--queues", "1", *at)
    done("group", "create", "poppers", *at)
    with Producer("filling", cluster.namesrv) as producer:
        sent = [producer.send(Message("popping", b"%d" % n)) for n in range(2)]
    assert valid_json("group-inflight", "group", "inflight", "poppers", *at) == []
    with PopConsumer("poppers", cluster.namesrv, consume_from_where="first") as consumer:
        consumer.subscribe("popping")
        held = []
        while len(held) < 2:
            held += consumer.receive()
        rows = valid_json("group-inflight", "group", "inflight", "poppers", *at)
        assert {row["message_id"] for row in rows} == {one.message_id for one in sent}
        assert {row["client_id"] for row in rows} == {consumer.client_id}
        assert [row["attempts"] for row in rows] == [1, 1]
        shown = done("group", "inflight", "poppers", "--topic", "popping", *at).out
        assert rows[0]["handle"] in shown and consumer.client_id in shown
        steps = valid_json("message-trace", "message", "trace", rows[0]["message_id"],
                           "--topic", "popping", *at)[0]["steps"]  # fmt: skip
        (step,) = [one for one in steps if one["kind"] == "in-flight"]
        assert step["group"] == "poppers" and rows[0]["handle"] in step["text"]
        handles = [row["handle"] for row in rows]
        valid_json("group-ack", "group", "ack", "poppers", handles[0], "--yes", *at)
        one_line(contrail("group", "ack", "poppers", handles[0], "--yes", *at), 1, "not in flight")
        one_line(contrail("group", "ack", "poppers", "orders", "--yes", *at), 2, "no handle")
        valid_json("group-return", "group", "return", "poppers", handles[1], "--yes", *at)
        again = []
        eventually(
            lambda: again.extend(consumer.receive(timeout_ms=200)) or again, "it comes again"
        )
        (row,) = valid_json("group-inflight", "group", "inflight", "poppers", *at)
        assert (row["message_id"], row["attempts"]) == (again[0].message_id, 2)
        consumer.ack(*again)
