"""Runs of sends: compiled equals pure, and what is gathered is what was plain."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kernels.material import outcome, twins

KERNEL, PURE = twins("send_runs")

queue_counts = st.sampled_from([{}, {b"plain": 4}])
PLAIN_FLAGS = 0x701


@st.composite
def kernel_sends(draw: st.DrawFn) -> tuple[Any, ...]:
    topic = draw(st.sampled_from([b"plain", b"plain", b"plain", b"other"]))
    flags = draw(st.sampled_from([0, 0, 0, 1, 0x100, 4, 0x10, -1]))
    queue_id = draw(st.sampled_from([0, 1, 2, 3, 4, -1]))
    body = draw(st.sampled_from([b"x", b"x", b"x", b""]))
    draft = (topic, queue_id, body, b"", 0, flags, 0, b"", 0, 0)
    is_batch, features = (
        draw(st.sampled_from([False] * 4 + [True])),
        draw(st.sampled_from([0] * 6 + [2, 4])),
    )
    return (1, 0, 1, 310, b"g", b"", 4, is_batch, -1, features, b"", draft)


@st.composite
def entries(draw: st.DrawFn) -> tuple[Any, ...]:
    """A connection, what it sent at once, and whether that is nothing but sends."""
    connection = SimpleNamespace(in_flight_count=draw(st.sampled_from([0, 0, 0, 7])))
    items = draw(st.lists(kernel_sends(), max_size=3))
    return connection, items, draw(st.sampled_from([True, True, True, False]))


@given(st.lists(kernel_sends(), max_size=6), st.integers(0, 3), queue_counts)
def test_compiled_and_pure_count_plain_sends_alike(
    items: list[Any], first: int, counts: dict[bytes, int]
) -> None:
    arguments = (items, min(first, len(items)), counts, PLAIN_FLAGS)
    assert outcome(KERNEL.count_plain, *arguments) == outcome(PURE.count_plain, *arguments)


@given(st.lists(entries(), max_size=5), st.integers(0, 5), queue_counts)
def test_compiled_and_pure_gather_alike(
    arrived: list[Any], at: int, counts: dict[bytes, int]
) -> None:
    lists: list[tuple[list[Any], list[Any], list[Any]]] = [([0], [0], []), ([0], [0], [])]
    ends = [
        kernel.gather_runs(arrived, min(at, len(arrived)), counts, PLAIN_FLAGS, 8, *into)
        for kernel, into in zip((KERNEL, PURE), lists, strict=True)
    ]
    assert ends[0] == ends[1]
    assert lists[0] == lists[1]


@given(st.lists(entries(), max_size=5))
def test_what_is_gathered_was_plain_and_keeps_its_order(arrived: list[Any]) -> None:
    items: list[Any] = []
    drafts: list[Any] = []
    parts: list[Any] = []
    counts = {b"plain": 4}
    end = KERNEL.gather_runs(arrived, 0, counts, PLAIN_FLAGS, 8, items, drafts, parts)
    taken = arrived[:end]
    assert items == [item for _, run, _ in taken for item in run]
    assert drafts == [item[11] for item in items]
    assert [(part[0], items[part[1] : part[2]]) for part in parts] == [
        (connection, run) for connection, run, _ in taken
    ]
    assert all(PURE.count_plain(run, 0, counts, PLAIN_FLAGS) == len(run) for _, run, _ in taken)
    if end < len(arrived):
        connection, run, only_sends = arrived[end]
        plain = PURE.count_plain(run, 0, counts, PLAIN_FLAGS) == len(run)
        room = connection.in_flight_count + len(run) <= 8
        assert not (only_sends and plain and room)
