"""Counting runs: compiled equals pure, and the counts are those of a simple loop."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contrail.model.message import MessageDraft
from tests.unit.kernels.material import outcome, twins

KERNEL, PURE = twins("send_tally")

MARK = b"__SHARDINGKEY\x01"
SKIPS = PURE.skips_of(MARK)
BOUNDS = (1024, 4096, 524_288, 1_048_576, 2_097_152, 4_194_304)

properties = st.one_of(
    st.binary(max_size=60),
    st.lists(st.sampled_from([MARK, MARK[:-1], MARK[1:], b"_", b"\x01", b"GKEY\x01", b"\xff"])).map(
        b"".join
    ),
)
sizes = st.one_of(
    st.integers(1, 5_000_000), st.sampled_from([bound + by for bound in BOUNDS for by in (0, 1)])
)


@st.composite
def stored_drafts(draw: st.DrawFn) -> tuple[Any, int]:
    draft = MessageDraft(
        draw(st.sampled_from([b"a", b"a", b"b", b"\xff"])),
        0,
        b"x",
        draw(properties),
        0,
        draw(st.sampled_from([0, 0, 1, 4, 8, 12, -8])),
        0,
        b"",
        0,
        draw(st.sampled_from([0, 0, 0, 7, -1, -(1 << 62)])),
    )
    return (draft if draw(st.booleans()) else tuple(draft)), draw(sizes)


def kind_of(draft: Any) -> int:
    if draft[9] < 0:
        return int(PURE.DELAY)
    if draft[5] & 12 == 8:
        return int(PURE.TRANSACTION)
    return int(PURE.FIFO if MARK in draft[3] else PURE.NORMAL)


def expected(run: list[tuple[Any, int]]) -> dict[tuple[bytes, int], list[int]]:
    rows: dict[tuple[bytes, int], list[int]] = {}
    for draft, size in run:
        row = rows.setdefault((draft[0], kind_of(draft)), [0] * 9)
        row[0] += 1
        row[1] += size
        row[2 + sum(size > bound for bound in BOUNDS)] += 1
    return rows


@given(st.lists(stored_drafts(), max_size=8), st.integers(0, 1 << 40))
def test_a_run_is_counted_by_topic_kind_and_size(run: list[tuple[Any, int]], start: int) -> None:
    places = [start + sum(size for _, size in run[:index]) for index in range(len(run))]
    end = start + sum(size for _, size in run)
    drafts = [draft for draft, _ in run]
    for kernel in (KERNEL, PURE):
        assert kernel.tally_run(drafts, places, end, MARK, SKIPS) == expected(run)


@given(st.binary(max_size=300))
def test_marks_that_cannot_be_searched_for_are_refused_alike(mark: bytes) -> None:
    assert outcome(KERNEL.skips_of, mark) == outcome(PURE.skips_of, mark)
