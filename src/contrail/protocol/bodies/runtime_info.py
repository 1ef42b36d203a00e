"""RocketMQ's spelling of times, sizes and work queues in runtime info, which is a ``KVTable``."""

from __future__ import annotations

from collections.abc import Mapping

from contrail.protocol.bodies.tables import KVTable

_KIBI = 1024
_UNITS = "KMGTPE"
_SECOND_MS = 1000
_MINUTE_MS = 60 * _SECOND_MS
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS

WORK_KINDS = ("send", "pull", "litePull", "query", "ack")


def encode_runtime_info(values: Mapping[str, str]) -> bytes:
    """The answer to GET_BROKER_RUNTIME_INFO."""
    return KVTable(values).encode()


def runtime_text(elapsed_ms: int) -> str:
    """How long the broker has been up."""
    days, rest_ms = divmod(max(0, elapsed_ms), _DAY_MS)
    hours, rest_ms = divmod(rest_ms, _HOUR_MS)
    minutes, rest_ms = divmod(rest_ms, _MINUTE_MS)
    # MessageFormat groups thousands, and a broker may be up for more than a thousand days.
    return f"[ {days:,} days, {hours} hours, {minutes} minutes, {rest_ms // _SECOND_MS} seconds ]"


def bytes_text(byte_count: int) -> str:
    """A size in binary units with one decimal."""
    if byte_count < _KIBI:
        return f"{byte_count} B"
    size, unit = float(byte_count), -1
    while size >= _KIBI and unit < len(_UNITS) - 1:
        size /= _KIBI
        unit += 1
    return f"{size:.1f} {_UNITS[unit]}iB"


def capacity_text(total_bytes: int, free_bytes: int) -> str:
    """Total and free bytes of the commit log's partition."""
    return f"Total : {bytes_text(total_bytes)}, Free : {bytes_text(free_bytes)}."


def work_values(sizes: Mapping[str, int], capacities: Mapping[str, int]) -> dict[str, str]:
    """The figures of RocketMQ's thread pool queues, by kind of work.

    Contrail answers on one loop and queues no request between reading and answering, so all waits
    are 0; the keys exist because tools read them.
    """
    values: dict[str, str] = {}
    for kind in WORK_KINDS:
        values[f"{kind}ThreadPoolQueueSize"] = str(sizes.get(kind, 0))
        values[f"{kind}ThreadPoolQueueCapacity"] = str(capacities.get(kind, 0))
        values[f"{kind}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    values["EndTransactionQueueSize"] = str(sizes.get("endTransaction", 0))
    values["EndTransactionThreadPoolQueueCapacity"] = str(capacities.get("endTransaction", 0))
    return values
