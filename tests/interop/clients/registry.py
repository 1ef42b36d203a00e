"""The clients that are driven, the rows each is tested by, and the rows a client has no API for.

``docs/reference/clients.md`` shows the same as two tables; ``tests/house`` keeps them equal, and
running this module prints them: ``python -m tests.interop.clients.registry``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.interop.clients import cpp, go, node
from tests.interop.clients.driver import Driver
from tests.interop.clients.java import java_4, java_5

_PINS = tomllib.loads((Path(__file__).parents[1] / "versions.toml").read_text(encoding="utf-8"))

# Each maker takes the folder for the homes of the processes.
DRIVERS: dict[str, Callable[[Path], Driver]] = {
    "java5": java_5,
    "java4": java_4,
    "go": go.go,
    "node": node.node,
    "cpp": cpp.cpp,
}

CLIENTS: dict[str, str] = {
    "java5": f"Java {_PINS['java-client-5']['version']}",
    "java4": f"Java {_PINS['java-client-4']['version']}",
    "go": f"Go {go.version()}",
    "node": f"Node ali-ons {node.version()}",
    "cpp": f"C++ (PyPI rocketmq {cpp.VERSION})",
}

ROWS: dict[str, str] = {
    "sync send": "tests/interop/clients/test_send.py::test_sync_send",
    "async send": "tests/interop/clients/test_send.py::test_async_send",
    "one-way send": "tests/interop/clients/test_send.py::test_one_way_send",
    "batch send": "tests/interop/clients/test_send.py::test_batch_send",
    "compressed send": "tests/interop/clients/test_send.py::test_compressed_send",
    "queue selector": "tests/interop/clients/test_send.py::test_queue_selector",
    "push concurrently": "tests/interop/clients/test_consume.py::test_push_concurrently",
    "push orderly": "tests/interop/clients/test_consume.py::test_push_orderly",
    "broadcasting": "tests/interop/clients/test_consume.py::test_broadcasting",
    "lite pull": "tests/interop/clients/test_consume.py::test_lite_pull",
    "pull": "tests/interop/clients/test_consume.py::test_pull",
    "tags": "tests/interop/clients/test_consume.py::test_tags",
    "SQL92": "tests/interop/clients/test_consume.py::test_sql92",
    "query by id": "tests/interop/clients/test_query.py::test_query_by_id",
    "query by key": "tests/interop/clients/test_query.py::test_query_by_key",
    "rebalancing": "tests/interop/clients/test_rebalance.py::test_rebalancing",
    "broker restart": "tests/interop/clients/test_restart.py::test_broker_restart",
    "retry": "tests/interop/clients/test_kinds_retry.py::test_retry",
    "dead letters": "tests/interop/clients/test_kinds_retry.py::test_dead_letters",
    "orderly with a failing message": "tests/interop/clients/test_kinds_order.py"
    "::test_orderly_with_a_failing_message",
    "delay levels": "tests/interop/clients/test_kinds_waiting.py::test_delay_levels",
}

# Rows that only the Java clients are tested by, in one process for many producers and consumers.
JAVA = ("java5", "java4")
_KINDS = "tests/interop/clients/test_kinds"
JAVA_ROWS: dict[str, str] = {
    "timers": f"{_KINDS}_waiting.py::test_timers",
    "recall": f"{_KINDS}_waiting.py::test_recall",
    "transactions": f"{_KINDS}_transactions.py::test_transactions",
    "transaction of a killed producer": f"{_KINDS}_transactions.py"
    "::test_transaction_of_a_killed_producer",
    "request-reply": f"{_KINDS}_replies.py::test_request_reply",
    "order per key": f"{_KINDS}_order.py::test_order_per_key_while_consumers_join_and_leave",
    "global order": f"{_KINDS}_order.py::test_order_of_one_queue_while_consumers_join_and_leave",
    "reset by time": f"{_KINDS}_replay.py::test_reset_by_time",
    "first start": f"{_KINDS}_replay.py::test_where_a_new_group_starts",
}

# (row, client) -> which API the client does not have.
LACKS: dict[tuple[str, str], str] = {
    ("query by id", "go"): "`admin.Admin` has no call that views a message",
    ("query by key", "go"): "`admin.Admin` has no call that queries messages",
    ("one-way send", "node"): "`Producer.send` always waits for the answer",
    ("batch send", "node"): "`Producer.send` takes one message",
    ("queue selector", "node"): "`Producer.send` takes no selector: `Message.shardingKey` hashes "
    "to a queue number, on whichever broker is next",
    ("push orderly", "node"): "`Consumer` locks no queues",
    ("lite pull", "node"): "only the push `Consumer` is exported",
    ("pull", "node"): "only the push `Consumer` is exported",
    ("query by id", "node"): "no `viewMessage` (its code is commented out)",
    ("query by key", "node"): "no call that queries messages",
    ("batch send", "cpp"): "`SendBatchMessage` marks the batch with the text `1`, which Java reads "
    "as false: the original stores the whole batch as one message",
    ("lite pull", "cpp"): "no lite pull consumer",
    ("SQL92", "cpp"): "`Subscribe` takes tags only",
    ("query by id", "cpp"): "`MQClient::viewMessage` has no body: it finds nothing, ever",
    ("query by key", "cpp"): "`MQClient::queryMessage` only throws",
    ("orderly with a failing message", "node"): "`Consumer` locks no queues",
    ("timers", "java4"): "`Message` has no `setDeliverTimeMs`",
    ("recall", "java4"): "no `recallMessage`",
}


def clients_of(row: str) -> list[str]:
    """The clients that are asked to do that row."""
    asked = JAVA if row in JAVA_ROWS else tuple(DRIVERS)
    assert row in ROWS | JAVA_ROWS, row
    return [client for client in asked if (row, client) not in LACKS]


def cell(row: str, client: str) -> str:
    """A client's cell of the table: the test that it passes, or the API it lacks."""
    if (row, client) in LACKS:
        return f"the client lacks it ({LACKS[row, client]})"
    return f"passes (`{(ROWS | JAVA_ROWS)[row]}[{client}]`)"


def table(rows: Iterable[str], clients: Iterable[str]) -> str:
    """A matrix as it stands in the docs."""
    asked = list(clients)
    lines = [["", *(CLIENTS[client] for client in asked)], ["---"] * (1 + len(asked))]
    lines += [[row, *(cell(row, client) for client in asked)] for row in rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    print(table(ROWS, CLIENTS))
    print(table(JAVA_ROWS, JAVA), end="")
