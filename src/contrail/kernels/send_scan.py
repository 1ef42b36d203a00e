"""Takes apart the fast sends that bytes begin with, into rows of numbers (see ``send_rows``).

Neighbours of one client have headers that differ in a few values only. A header that was taken
apart in full (``frame_scan``) serves as the pattern of those behind it: stretches that are compared
as they stand, and between them the values that may differ. Of each header three are made:

====== ==========================================================================================
strict queue id, born time, opaque and the value of the unique key, which keeps its length: the
       properties are those of the message before, with another key
loose  queue id, born time, opaque and all properties, which are looked over anew
wide   the same and the topic
====== ==========================================================================================

A header that fits no pattern is taken apart in full, and makes the patterns of the next ones.
"""

from __future__ import annotations

from array import array

from contrail.kernels import frame_scan, raw_bytes, record_layout, send_rows

# The values between two stretches of a pattern; the last is the end of the header.
_A_QUEUE_ID = 0
_A_BORN_TIME = 1
_AN_OPAQUE = 2
_A_KEY = 3
_PROPERTIES = 4
_A_TOPIC = 5
_THE_END = 6
_NO_ROWS = array("q")


def scan_sends(
    buffer: bytes, frame_bytes_max: int, header_bytes_max: int, suffix: bytes
) -> tuple[int, int, array[int], bytearray, list[bytes]] | None:
    """Take apart the fast sends at the start of the bytes; None when the first frame is none.

    Returns how many sends there are and where they end, their rows (see ``send_rows``), their
    properties, each with ``suffix``, and their topics.
    """
    view = buffer
    available = len(buffer)
    count = 0
    text_bytes = 0
    position = 0
    while available - position >= 8:
        total = raw_bytes.u32(view, position)
        header_bytes = raw_bytes.u32(view, position + 4) & 0xFFFFFF
        if view[position + 4] > frame_scan.TYPE_BINARY:
            break
        if total + 4 > frame_bytes_max or header_bytes > header_bytes_max:
            break
        if header_bytes + 4 > total or available - position - 4 < total:
            break
        count += 1
        text_bytes += header_bytes
        position += total + 4
    if count == 0:
        return None
    rows = raw_bytes.blank_rows(_NO_ROWS, send_rows.ROW_NUMBERS * count)
    # No text is longer than it was in its header, but for what is added.
    texts = raw_bytes.blank(text_bytes + count * (len(suffix) + 1))
    topics: list[bytes] = []
    consumed = _fill_rows(view, rows, texts, suffix, count, topics)
    return (len(topics), consumed, rows, texts, topics) if topics else None


class _Pattern:
    """The header of a send as places of the values that may differ, in their order.

    It is empty when its header had a value in another form, and then nothing fits it.
    """

    def __init__(self) -> None:
        self.header_at = 0
        self.count = 0
        self.kinds = [0, 0, 0, 0, 0, 0]
        self.starts = [0, 0, 0, 0, 0, 0]
        self.ends = [0, 0, 0, 0, 0, 0]


def _fill_rows(
    view: bytes,
    rows: array[int],
    texts: bytearray,
    suffix: bytes,
    count: int,
    topics: list[bytes],
) -> int:
    """Fill the rows of the fast sends among ``count`` frames, up to the first that is none.

    Returns where the last of them ends. Each adds its topic to ``topics``.
    """
    table = raw_bytes.numbers(rows, send_rows.ROW_NUMBERS * count)
    target = texts
    send = frame_scan.Send()
    strict = _Pattern()
    loose = _Pattern()
    wide = _Pattern()
    topic = b""
    position = 0
    text_before = 0
    text_at = 0
    at = 0
    for _ in range(count):
        frame_end = position + 4 + raw_bytes.u32(view, position)
        header_at = position + 8
        header_end = header_at + (raw_bytes.u32(view, position + 4) & 0xFFFFFF)
        # Patterns are of JSON headers: a binary header fits none.
        is_json = view[position + 4] == 0
        if is_json and _fits(strict, view, header_at, header_end, send):
            text_end = _repeat_properties(view, target, text_before, text_at, send)
        elif is_json and _fits(loose, view, header_at, header_end, send):
            # Properties that have differed once are likely to differ again.
            strict.count = 0
            text_end = _put_properties(view, target, text_at, send, suffix)
        elif is_json and _fits(wide, view, header_at, header_end, send):
            strict.count = loose.count = 0
            text_end = _put_properties(view, target, text_at, send, suffix)
            if not frame_scan.same(view, send.topic_at, send.topic_end, topic):
                topic = view[send.topic_at : send.topic_end]
        else:
            if not _take_apart(view, position, header_end, frame_end, send):
                break
            text_end = _put_properties(view, target, text_at, send, suffix)
            if not frame_scan.same(view, send.topic_at, send.topic_end, topic):
                topic = view[send.topic_at : send.topic_end]
            if text_end >= 0 and count > 1:
                _learn(strict, loose, wide, view, header_at, header_end, text_at, send)
        if text_end < 0:
            break
        topics.append(topic)
        table[at + send_rows.OPAQUE] = send.opaque
        table[at + send_rows.ONE_WAY] = send.request_flag & 2
        table[at + send_rows.QUEUE_ID] = send.queue_id
        table[at + send_rows.SYS_FLAG] = send.sys_flag
        table[at + send_rows.BORN_MS] = send.born
        table[at + send_rows.FLAG] = send.flag
        table[at + send_rows.TIMES] = send.times
        table[at + send_rows.TOPIC_BYTES] = send.topic_end - send.topic_at
        table[at + send_rows.BODY_AT] = header_end
        table[at + send_rows.BODY_END] = frame_end
        table[at + send_rows.PROPERTIES_AT] = text_at
        table[at + send_rows.PROPERTIES_END] = text_end
        table[at + send_rows.KEY_AT] = send.key_at
        table[at + send_rows.KEY_END] = send.key_end
        table[at + send_rows.KEYS_AT] = send.keys_at
        table[at + send_rows.KEYS_END] = send.keys_end
        table[at + send_rows.TAGS_AT] = send.tags_at
        table[at + send_rows.TAGS_END] = send.tags_end
        table[at + send_rows.IS_FIFO] = send.is_fifo
        table[at + send_rows.QUEUE_OFFSET] = table[at + send_rows.PHYSICAL_OFFSET] = table[
            at + send_rows.RECORD_BYTES
        ] = 0
        at += send_rows.ROW_NUMBERS
        text_before = text_at
        text_at = text_end
        position = frame_end
    raw_bytes.cut(texts, text_at)
    return position


def _take_apart(
    view: bytes, position: int, header_end: int, frame_end: int, send: frame_scan.Send
) -> bool:
    """Note the parts of the frame at ``position``; False when it is no fast send."""
    taken = frame_scan.scan_header(
        view, view[position + 4], position + 8, header_end, frame_end, send
    )
    if taken is None or taken or send.is_batch or send.code != frame_scan.SEND_V2:
        return False
    if send.group_marks or send.topic_marks or send.default_topic_marks:
        return False
    return 0 < send.topic_end - send.topic_at <= record_layout.TOPIC_BYTES_MAX


def _put_properties(
    view: bytes, target: bytearray, text_at: int, send: frame_scan.Send, suffix: bytes
) -> int:
    """Write a message's properties and the suffix; where they end, or -1 if the send is not fast.

    C writes through a bare pointer: the caller made room for the whole header and the suffix.
    """
    if send.properties_marks & frame_scan.NOT_ASCII:
        return -1
    if send.is_binary:
        text_end = _copy(view, send.properties_at, send.properties_end, target, text_at)
    else:
        text_end = frame_scan.unescape(
            view, send.properties_at, send.properties_end, target, text_at
        )
    if text_end <= text_at:
        return -1
    frame_scan.look_over_at(target, text_at, text_end, send)
    if send.features:
        return -1
    if target[text_end - 1] != 2:
        target[text_end] = 2
        text_end += 1
    text_end = _copy(suffix, 0, len(suffix), target, text_end)
    if text_end - text_at > record_layout.PROPERTIES_BYTES_MAX:
        return -1
    return -1 if record_layout.may_end_with_crc(target, text_at, text_end) else text_end


def _repeat_properties(
    view: bytes, target: bytearray, text_before: int, text_at: int, send: frame_scan.Send
) -> int:
    """As ``_put_properties``, for those that differ from the ones before in their key only.

    Those end where these begin, and are as long. The new key is at ``properties_at``.
    """
    moved = text_at - text_before
    text_end = _copy(target, text_before, text_at, target, text_at)
    send.key_at += moved
    send.key_end += moved
    key_bytes = send.key_end - send.key_at
    _copy(view, send.properties_at, send.properties_at + key_bytes, target, send.key_at)
    # A part that the message does not have stays at 0.
    if send.keys_end:
        send.keys_at += moved
        send.keys_end += moved
    if send.tags_end:
        send.tags_at += moved
        send.tags_end += moved
    return -1 if record_layout.may_end_with_crc(target, text_at, text_end) else text_end


def _learn(
    strict: _Pattern,
    loose: _Pattern,
    wide: _Pattern,
    view: bytes,
    header_at: int,
    header_end: int,
    text_at: int,
    send: frame_scan.Send,
) -> None:
    """Make the patterns of a fast send whose properties have just been put at ``text_at``."""
    strict.count = loose.count = wide.count = 0
    # A number without quotes has rules of its own, which are kept for an opaque only.
    if not send.is_binary and _are_quoted(view, send):
        _begin_pattern(loose, header_at, header_end, send)
        _add_value(loose, _PROPERTIES, send.properties_at, send.properties_end)
        _begin_pattern(wide, header_at, header_end, send)
        _add_value(wide, _PROPERTIES, send.properties_at, send.properties_end)
        _add_value(wide, _A_TOPIC, send.topic_at, send.topic_end)
        key_at = _escaped_place(view, send.properties_at, send.key_at - text_at)
        key_end = key_at + send.key_end - send.key_at
        if _is_plain(view, key_at, key_end):
            _begin_pattern(strict, header_at, header_end, send)
            _add_value(strict, _A_KEY, key_at, key_end)


def _are_quoted(view: bytes, send: frame_scan.Send) -> bool:
    return (
        view[send.queue_id_at - 1] == 34
        and view[send.born_at - 1] == 34
        and view[send.topic_at - 1] == 34
    )


def _begin_pattern(
    pattern: _Pattern, header_at: int, header_end: int, send: frame_scan.Send
) -> None:
    pattern.header_at = header_at
    _add_value(pattern, _THE_END, header_end, header_end)
    _add_value(pattern, _A_QUEUE_ID, send.queue_id_at, send.queue_id_end)
    _add_value(pattern, _A_BORN_TIME, send.born_at, send.born_end)
    if send.opaque_at >= 0:
        _add_value(pattern, _AN_OPAQUE, send.opaque_at, send.opaque_end)


def _add_value(pattern: _Pattern, kind: int, start: int, end: int) -> None:
    """Add a value, in order of places; there are never more than six."""
    at = pattern.count
    while at > 0 and pattern.starts[at - 1] > start:
        pattern.kinds[at] = pattern.kinds[at - 1]
        pattern.starts[at] = pattern.starts[at - 1]
        pattern.ends[at] = pattern.ends[at - 1]
        at -= 1
    pattern.kinds[at] = kind
    pattern.starts[at] = start
    pattern.ends[at] = end
    pattern.count += 1


def _escaped_place(view: bytes, at: int, length: int) -> int:
    """Where in a valid JSON string from ``at`` its content has come to ``length`` bytes."""
    while length > 0:
        length -= 1
        if view[at] != 92:  # \
            at += 1
        elif view[at + 1] != 117:  # u
            at += 2
        else:
            point = frame_scan.hex4(view, at + 2)
            length -= 0 if point < 0x80 else 1 if point < 0x800 else 2
            at += 6
    return at


def _fits(pattern: _Pattern, view: bytes, at: int, end: int, send: frame_scan.Send) -> bool:
    """Whether the header from ``at`` to ``end`` fits; if so, the values that differ are noted."""
    same_from = pattern.header_at
    for index in range(pattern.count):
        length = pattern.starts[index] - same_from
        if end - at < length or not raw_bytes.same(view, same_from, at, length):
            return False
        at += length
        same_from = pattern.ends[index]
        kind = pattern.kinds[index]
        if kind == _THE_END:
            return at == end
        if kind == _A_KEY:
            send.properties_at = at
            at += same_from - pattern.starts[index]
            if at > end or not _is_plain(view, send.properties_at, at):
                return False
        elif kind == _PROPERTIES:
            packed = frame_scan.string_end(view, at, end)
            if packed < 0 or (packed >> 2) - at > frame_scan.VALUE_BYTES_MAX:
                return False
            send.properties_at = at
            send.properties_marks = packed & 3
            at = send.properties_end = packed >> 2
        elif kind == _A_TOPIC:
            packed = frame_scan.string_end(view, at, end)
            # A marked topic has an escape or a character outside ASCII.
            if (
                packed < 0
                or packed & 3
                or not 0 < (packed >> 2) - at <= record_layout.TOPIC_BYTES_MAX
            ):
                return False
            send.topic_at = at
            at = send.topic_end = packed >> 2
        else:
            start = at
            number = 0
            while at < end and 48 <= view[at] <= 57 and at - start < frame_scan.DIGITS_MAX:
                number = number * 10 + view[at] - 48
                at += 1
            zero_led = at - start > 1 and view[start] == 48
            if at == start or not _note_number(kind, number, zero_led, send):
                return False
    return False


def _note_number(kind: int, number: int, zero_led: bool, send: frame_scan.Send) -> bool:
    if kind == _A_BORN_TIME:
        send.born = number
        return True
    if number > frame_scan.I32_MAX:
        return False
    if kind == _A_QUEUE_ID:
        send.queue_id = number
        return True
    send.opaque = number
    # The opaque stands without quotes, where JSON allows no zeros in front.
    return not zero_led


def _is_plain(view: bytes, at: int, end: int) -> bool:
    """Whether a text of JSON is printable ASCII without quotes and escapes."""
    odd = 0
    for index in range(at, end):
        byte = view[index]
        odd |= (byte < 32) | (byte > 126) | (byte == 34) | (byte == 92)
    return odd == 0


def _copy(source: bytes | bytearray, at: int, end: int, target: bytearray, to: int) -> int:
    """Copy a stretch; where it ends in ``target``."""
    for index in range(end - at):
        target[to + index] = source[at + index]
    return to + end - at
