"""Recognises a pull that differs from an earlier one in a few numbers only.

A template is the JSON header of such a pull with a mark in place of each of these numbers. Marks
are control characters, which stand in no header that a template is made of:

====  ==========================================
mark  what stands there
====  ==========================================
1     ``queueId``
2     ``queueOffset``
3     ``commitOffset``
4     ``opaque``
====  ==========================================
"""

from __future__ import annotations

from contrail.kernels import raw_bytes

QUEUE_ID = 1
QUEUE_OFFSET = 2
COMMIT_OFFSET = 3
OPAQUE = 4

_A_QUEUE_ID = QUEUE_ID
_A_QUEUE_OFFSET = QUEUE_OFFSET
_A_COMMIT_OFFSET = COMMIT_OFFSET
_AN_OPAQUE = OPAQUE
_MARKS_END = 32
_DIGITS_MAX = 18
_PREFIX_BYTES = 8


def match_pull(buffer: bytes, start: int, template: bytes) -> tuple[int, int, int, int, int] | None:
    """The whole frame at ``start``, if it is like the template; else None.

    Returns where the frame ends, then queue id, queue offset, commit offset and opaque, each as
    plain digits; -1 for one that the template has no mark for.
    """
    view = buffer
    available = len(buffer)
    if start < 0 or available - start < _PREFIX_BYTES:
        return None
    at = start + _PREFIX_BYTES
    end = start + 4 + raw_bytes.u32(view, start)
    # A header in JSON has the type 0, which is the first byte of its length; there is no body.
    if end > available or end - at != raw_bytes.u32(view, start + 4):
        return None
    pattern = template
    queue_id = queue_offset = commit_offset = opaque = -1
    for index in range(len(template)):
        mark = pattern[index]
        if mark >= _MARKS_END:
            if at >= end or view[at] != mark:
                return None
            at += 1
            continue
        first = at
        number = 0
        while at < end and 48 <= view[at] <= 57:
            if at - first >= _DIGITS_MAX:
                return None
            number = number * 10 + view[at] - 48
            at += 1
        if at == first:
            return None
        if mark == _A_QUEUE_ID:
            queue_id = number
        elif mark == _A_QUEUE_OFFSET:
            queue_offset = number
        elif mark == _A_COMMIT_OFFSET:
            commit_offset = number
        elif mark == _AN_OPAQUE:
            # The only one without quotes: JSON has no zeros ahead of a number.
            if view[first] == 48 and at - first > 1:
                return None
            opaque = number
        else:
            return None
    if at != end or not raw_bytes.is_i32(queue_id) or not raw_bytes.is_i32(opaque):
        return None
    return (end, queue_id, queue_offset, commit_offset, opaque)
