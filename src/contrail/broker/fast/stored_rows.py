"""Stored sends that are rows of numbers, as the general way of answering wants to see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from contrail.kernels import send_rows
from contrail.kernels.plain_sends import two_way_count
from contrail.kernels.send_runs import Item
from contrail.protocol.codes import RequestCode
from contrail.store import AppendedChunks, AppendedRun

if TYPE_CHECKING:
    from contrail.kernels.plain_sends import Chunk

_NO_TEXT = b""
# How the tally names two-way sends of this code; those that are one-way are named one higher.
_SEND = int(RequestCode.SEND_MESSAGE_V2) * 2


def slim_items(chunk: Chunk) -> list[Item]:
    """The sends as tuples, with what their answers need and nothing else."""
    items: list[Item] = []
    _, count, rows, texts, _, _ = chunk
    for at in range(0, count * send_rows.ROW_NUMBERS, send_rows.ROW_NUMBERS):
        key = bytes(texts[rows[at + send_rows.KEY_AT] : rows[at + send_rows.KEY_END]])
        request = (rows[at + send_rows.OPAQUE], rows[at + send_rows.ONE_WAY])
        draft = (_NO_TEXT, rows[at + send_rows.QUEUE_ID])
        code = RequestCode.SEND_MESSAGE_V2
        items.append((*request, 0, code, _NO_TEXT, _NO_TEXT, 0, False, -1, 0, key, draft))
    return items


def run_of(chunk: Chunk, appended: AppendedChunks) -> AppendedRun:
    """Where the sends landed."""
    _, count, rows, _, _, _ = chunk
    step, end = send_rows.ROW_NUMBERS, count * send_rows.ROW_NUMBERS
    return AppendedRun(
        list(rows[send_rows.QUEUE_OFFSET : end : step]),
        list(rows[send_rows.PHYSICAL_OFFSET : end : step]),
        appended.store_timestamp_ms,
        appended.physical_end,
    )


def is_two_way(chunk: Chunk, index: int) -> bool:
    """Whether somebody waits for the answer to one of the sends."""
    return not chunk[2][index * send_rows.ROW_NUMBERS + send_rows.ONE_WAY]


def count_chunk_codes(sent: Sequence[tuple[object, Chunk]]) -> dict[int, int]:
    """As ``send_tally.count_codes``, for chunks and who sent them: all came with one code."""
    both = two_way = 0
    for _, chunk in sent:
        both += chunk[1]
        two_way += two_way_count(chunk)
    if two_way == both:
        return {_SEND: two_way}
    return {_SEND: two_way, _SEND + 1: both - two_way} if two_way else {_SEND + 1: both}
