"""Placing a run: compiled equals pure, and both equal counting by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contrail.model.message import MessageDraft
from tests.unit.kernels.material import outcome, twins

KERNEL, PURE = twins("place_run")

drafts = st.lists(
    st.builds(
        MessageDraft,
        topic=st.sampled_from([b"a", b"b"]),
        queue_id=st.integers(0, 2),
        body=st.just(b""),
        sys_flag=st.sampled_from([0, 1, 4, 8, 12, 0x8C]),
    ),
    max_size=20,
)
known = st.dictionaries(
    st.tuples(st.sampled_from([b"a", b"b"]), st.integers(0, 2)), st.integers(0, 99)
)


@given(drafts, known, st.integers(0, 1 << 40), st.integers(1, 5), st.data())
def test_offsets_are_those_of_counting_by_hand(
    run: list[MessageDraft],
    next_offsets: dict[tuple[bytes, int], int],
    physical_end: int,
    weight: int,
    data: st.DataObject,
) -> None:
    sizes = data.draw(st.lists(st.integers(91, 5000), min_size=len(run), max_size=len(run)))
    counted = dict(next_offsets)
    queue_offsets, changed = [], {}
    for draft in run:
        key = (draft.topic, draft.queue_id)
        if draft.sys_flag & 0xC in (4, 12):
            queue_offsets.append(0)
            continue
        queue_offsets.append(counted.get(key, 0))
        counted[key] = changed[key] = counted.get(key, 0) + weight
    physical_offsets = [physical_end + sum(sizes[:index]) for index in range(len(run))]
    fresh = [key for key in changed if key not in next_offsets]
    expected = (queue_offsets, physical_offsets, physical_end + sum(sizes), changed, fresh)
    before = dict(next_offsets)
    assert KERNEL.place_run(run, sizes, next_offsets, physical_end, weight) == expected
    assert PURE.place_run(run, sizes, next_offsets, physical_end, weight) == expected
    assert next_offsets == before


@given(drafts, st.lists(st.integers(), max_size=3))
def test_too_few_sizes_fail_alike(run: list[MessageDraft], sizes: list[int]) -> None:
    bounded = [size % (1 << 31) for size in sizes]
    compiled = outcome(KERNEL.place_run, run, bounded, {}, 0, 1)
    assert compiled == outcome(PURE.place_run, run, bounded, {}, 0, 1)
