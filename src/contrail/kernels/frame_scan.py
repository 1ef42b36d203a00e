"""Finds whole frames in received bytes and takes the usual ones apart in one pass.

A frame is ``total(4) type(1) header_length(3) header body``. ``scan_frames`` reads JSON headers in
the plain form that clients write; a header it does not fully understand is handed back as places
in the buffer, for the tolerant decoder. The shapes of an item are told apart by length:

====== ==========================================================================================
length item
====== ==========================================================================================
4      ``(header_type, header_start, header_end, frame_end)``: to be decoded by the caller
8      ``(code, opaque, fields, body, flag, version, language, remark)``: any other frame
9      a pull: ``(opaque, flag, version, code, key, queue_offset, count_max, commit_offset,
       header)``. ``key`` holds all fields that stay the same while a consumer reads on,
       ``commit_offset`` is -1 when there is none, and ``header`` is for who needs more
12     a send in the short spelling: ``(opaque, flag, version, code, producer_group,
       default_topic, default_queue_count, is_batch, reconsume_max, features, unique_key, draft)``
====== ==========================================================================================

``draft`` is ready for the record kernel: ``(topic, queue_id, body, properties, flag, sys_flag,
born_timestamp_ms, born_host, reconsume_times, 0)``. Its properties end with ``suffix`` when
``features`` is 0; otherwise they are as they came, and the bits say what needs a second look.
"""

from __future__ import annotations

from typing import Any

PROBLEM_NONE = 0
PROBLEM_TOTAL = 1
PROBLEM_HEADER_LENGTH = 2
PROBLEM_HEADER_TOO_LONG = 3

# A pair that no parser keeps, or a name the broker sets itself.
FEATURE_UNTIDY = 1
FEATURE_NO_UNIQUE_KEY = 2
# A name that changes where or how the message is stored.
FEATURE_SPECIAL = 4

KIND_OTHER = 2
_PULL_SEEN = 1
_OTHER_SEEN = KIND_OTHER

_SEND_V2 = 310
_SEND_BATCH = 320
_PULL = 11
_LITE_PULL = 361
_RESPONSE_FLAG = 1
_FIELDS_MAX = 256
_KEY_BYTES_MAX = 256
_VALUE_BYTES_MAX = 65_536
_ESCAPED = 1
_NOT_ASCII = 2
# All of a to h must be there.
_REQUIRED_LETTERS = 255
_DIGITS_MAX = 18
_I32_MAX = 2147483647

Item = tuple[Any, ...]


def split_frames(buffer: bytes, start: int, frame_bytes_max: int) -> tuple[list[int], int, int]:
    """Flat ``[frame_start, frame_end, ...]`` of the whole frames, where they end, a problem."""
    view = buffer
    available = len(buffer)
    position = start
    places: list[int] = []
    while available - position >= 4:
        total = _u32(view, position)
        if total < 4 or total + 4 > frame_bytes_max:
            return places, position, PROBLEM_TOTAL
        if available - position - 4 < total:
            break
        places.append(position)
        position += total + 4
        places.append(position)
    return places, position, PROBLEM_NONE


def scan_frames(
    buffer: bytes,
    start: int,
    frame_bytes_max: int,
    header_bytes_max: int,
    born_host: bytes,
    suffix: bytes,
) -> tuple[list[Item], int, int, int]:
    """The items of all whole frames, where they end, a problem, and which other kinds there are.

    0 says that all items are sends; ``KIND_OTHER`` is a bit that is set when some are neither
    sends nor pulls.
    """
    view = buffer
    available = len(buffer)
    position = start
    items: list[Item] = []
    kinds = 0
    while available - position >= 8:
        total = _u32(view, position)
        if total < 4 or total + 4 > frame_bytes_max:
            return items, position, PROBLEM_TOTAL, kinds
        if available - position - 4 < total:
            break
        header_bytes = _u32(view, position + 4) & 0xFFFFFF
        header_start = position + 8
        header_end = header_start + header_bytes
        frame_end = position + 4 + total
        if header_end > frame_end:
            return items, position, PROBLEM_HEADER_LENGTH, kinds
        if header_bytes > header_bytes_max:
            return items, position, PROBLEM_HEADER_TOO_LONG, kinds
        item = None
        if view[position + 4] == 0:
            item = _scan_json(view, header_start, header_end, frame_end, born_host, suffix)
        if item is None:
            item = (view[position + 4], header_start, header_end, frame_end)
        if len(item) == 9:
            kinds |= _PULL_SEEN
        elif len(item) != 12:
            kinds |= _OTHER_SEEN
        items.append(item)
        position = frame_end
    return items, position, PROBLEM_NONE, kinds


def _scan_json(
    view: bytes,
    at: int,
    end: int,
    frame_end: int,
    born_host: bytes,
    suffix: bytes,
) -> Item | None:
    """The item of a JSON header in plain form, or None."""
    body = view[end:frame_end]
    code = -1
    flag = 0
    opaque = 0
    version = 0
    language = "JAVA"
    remark: str | None = None
    fields: dict[str, str] | None = None
    sends: Item | None = None
    pull: Item | None = None
    header_start = at
    if at >= end or view[at] != 123:  # {
        return None
    at += 1
    while True:
        if at >= end or view[at] != 34:  # "
            return None
        packed = _string_end(view, at + 1, end)
        if packed < 0 or packed & 3:
            return None
        key_start = at + 1
        key_end = packed >> 2
        at = key_end + 1
        if at >= end or view[at] != 58:  # :
            return None
        at += 1
        kind = view[key_start] if key_end > key_start else 0
        if _same(view, key_start, key_end, b"extFields"):
            if fields is not None or sends is not None or pull is not None:
                return None
            if code == _SEND_V2 or code == _SEND_BATCH:
                sends = _scan_send(view, at, end, body, born_host, suffix)
                if sends is None:
                    return None
                at = sends[0]
            else:
                if (code == _PULL or code == _LITE_PULL) and end == frame_end:
                    pull = _scan_pull(view, at, end)
                if pull is not None:
                    at = pull[0]
                else:
                    fields = {}
                    at = _scan_fields(view, at, end, fields)
                    if at < 0:
                        return None
        elif at < end and view[at] == 34:
            packed = _string_end(view, at + 1, end)
            if packed < 0:
                return None
            value_start = at + 1
            at = (packed >> 2) + 1
            if _same(view, key_start, key_end, b"remark"):
                remark = _text(view, value_start, at - 1, packed & 3)
                if remark is None:
                    return None
            elif _same(view, key_start, key_end, b"language"):
                if packed & 3:
                    return None
                language = view[value_start : at - 1].decode("ascii")
            elif kind == 99 or kind == 102 or kind == 111 or kind == 118:
                # code, flag, opaque or version as text: rare, and left to the other decoder.
                return None
            elif packed & 3 and _raw(view, value_start, at - 1, packed & 3) is None:
                return None
        else:
            value_start = at
            at = _number_end(view, at, end)
            if at < 0 or at - value_start > 11:
                return None
            if _same(view, key_start, key_end, b"language") or _same(
                view, key_start, key_end, b"remark"
            ):
                return None
            number = _integer(view, value_start, at)
            if number > _I32_MAX or number < -_I32_MAX - 1:
                return None
            if _same(view, key_start, key_end, b"code"):
                code = number
            elif _same(view, key_start, key_end, b"flag"):
                flag = number
            elif _same(view, key_start, key_end, b"opaque"):
                opaque = number
            elif _same(view, key_start, key_end, b"version"):
                version = number
        if at >= end:
            return None
        if view[at] == 125:  # }
            break
        if view[at] != 44:  # ,
            return None
        at += 1
    if at + 1 != end or code < 0:
        return None
    if sends is not None:
        if flag & _RESPONSE_FLAG or (code != _SEND_V2 and code != _SEND_BATCH):
            return None
        return (
            opaque,
            flag,
            version,
            code,
            sends[1],
            sends[2],
            sends[3],
            sends[4],
            sends[5],
            sends[6],
            sends[7],
            sends[8],
        )
    if pull is not None:
        if flag or (code != _PULL and code != _LITE_PULL):
            return None
        return (
            opaque,
            flag,
            version,
            code,
            pull[1],
            pull[2],
            pull[3],
            pull[4],
            view[header_start:end],
        )
    if fields is None:
        fields = {}
    return (code, opaque, fields, body, flag, version, language, remark)


def _scan_pull(view: bytes, at: int, end: int) -> Item | None:
    """Where the fields end, their stable part, and the numbers; None when a field is unusual."""
    stable = bytearray()
    queue_offset = -1
    count_max = -1
    commit_offset = -1
    count = 0
    if at >= end or view[at] != 123:
        return None
    at += 1
    while True:
        if at >= end or view[at] != 34:
            return None
        packed = _string_end(view, at + 1, end)
        if packed < 0 or packed & 3:
            return None
        key_start = at + 1
        key_end = packed >> 2
        at = key_end + 1
        if at + 1 >= end or view[at] != 58 or view[at + 1] != 34:
            return None
        if key_end - key_start > _KEY_BYTES_MAX or view[key_start] == 36:  # $
            return None
        value_start = at + 2
        packed = _string_end(view, value_start, end)
        if packed < 0 or packed & 3:
            return None
        at = (packed >> 2) + 1
        count += 1
        if count > _FIELDS_MAX or at - 1 - value_start > _VALUE_BYTES_MAX:
            return None
        if _same(view, key_start, key_end, b"queueOffset"):
            queue_offset = _digits(view, value_start, at - 1)
            if queue_offset < 0:
                return None
        elif _same(view, key_start, key_end, b"maxMsgNums"):
            count_max = _digits(view, value_start, at - 1)
            if count_max < 0:
                return None
        elif _same(view, key_start, key_end, b"commitOffset"):
            commit_offset = _digits(view, value_start, at - 1)
            if commit_offset < 0:
                return None
        elif _same(view, key_start, key_end, b"suspendTimeoutMillis"):
            if _digits(view, value_start, at - 1) < 0:
                return None
        else:
            # With the quotes, so that no two sets of fields look alike.
            stable += view[key_start - 1 : at]
        if at >= end:
            return None
        if view[at] == 125:
            break
        if view[at] != 44:
            return None
        at += 1
    if queue_offset < 0 or count_max < 0:
        return None
    return (at + 1, bytes(stable), queue_offset, count_max, commit_offset)


def _digits(view: bytes, at: int, end: int) -> int:
    """A number of plain digits that fits in 64 bits; -1 for everything else."""
    if at >= end or end - at > _DIGITS_MAX:
        return -1
    number = 0
    while at < end:
        digit = view[at]
        if digit < 48 or digit > 57:
            return -1
        number = number * 10 + digit - 48
        at += 1
    return number


def _scan_send(
    view: bytes, at: int, end: int, body: bytes, born_host: bytes, suffix: bytes
) -> Item | None:
    """The one-letter fields, after the place where they end; None when a field is unusual."""
    producer_group = b""
    topic = b""
    default_topic = b""
    properties = b""
    default_queue_count = 0
    queue_id = 0
    sys_flag = 0
    born = 0
    flag = 0
    times = 0
    reconsume_max = -1
    is_batch = False
    seen = 0
    count = 0
    if at >= end or view[at] != 123:
        return None
    at += 1
    while True:
        if at >= end or view[at] != 34:
            return None
        packed = _string_end(view, at + 1, end)
        if packed < 0 or packed & 3:
            return None
        key_start = at + 1
        at = (packed >> 2) + 1
        key_bytes = at - 1 - key_start
        if key_bytes > _KEY_BYTES_MAX or at >= end or view[at] != 58:
            return None
        at += 1
        if at >= end:
            return None
        marks = 0
        if view[at] == 34:
            packed = _string_end(view, at + 1, end)
            if packed < 0:
                return None
            marks = packed & 3
            value_start = at + 1
            value_end = packed >> 2
            at = value_end + 1
        else:
            value_start = at
            value_end = _scalar_end(view, at, end)
            if value_end < 0:
                return None
            at = value_end
        if value_end - value_start > _VALUE_BYTES_MAX:
            return None
        count += 1
        if count > _FIELDS_MAX:
            return None
        if key_bytes == 1:
            letter = view[key_start]
            if letter == 105:  # i
                raw = _raw(view, value_start, value_end, marks)
                if raw is None:
                    return None
                properties = raw
            elif letter == 98 or letter == 97 or letter == 99:  # b, a, c
                raw = _raw(view, value_start, value_end, marks)
                if raw is None:
                    return None
                if letter == 98:
                    topic = raw
                    seen |= 2
                elif letter == 97:
                    producer_group = raw
                    seen |= 1
                else:
                    default_topic = raw
                    seen |= 4
            elif letter == 109:  # m
                if marks:
                    return None
                is_batch = _is_true(view, value_start, value_end)
            elif letter == 107:  # k
                if marks or _is_true(view, value_start, value_end):
                    return None
            elif 100 <= letter <= 108:
                if marks or not _is_integer(view, value_start, value_end):
                    return None
                number = _integer(view, value_start, value_end)
                if letter == 103:  # g
                    born = number
                    seen |= 64
                else:
                    if number > _I32_MAX or number < -_I32_MAX - 1:
                        return None
                    if letter == 100:  # d
                        default_queue_count = number
                        seen |= 8
                    elif letter == 101:  # e
                        queue_id = number
                        seen |= 16
                    elif letter == 102:  # f
                        sys_flag = number
                        seen |= 32
                    elif letter == 104:  # h
                        flag = number
                        seen |= 128
                    elif letter == 106:  # j
                        times = number
                    elif letter == 108:  # l
                        reconsume_max = number
            elif marks and _raw(view, value_start, value_end, marks) is None:
                return None
        elif marks and _raw(view, value_start, value_end, marks) is None:
            return None
        if at >= end:
            return None
        if view[at] == 125:
            break
        if view[at] != 44:
            return None
        at += 1
    if seen != _REQUIRED_LETTERS:
        return None
    features, key_start, key_end = look_over(properties)
    unique_key = b""
    if features == 0:
        unique_key = properties[key_start:key_end]
        if properties[len(properties) - 1] != 2:
            properties = properties + b"\x02" + suffix
        else:
            properties = properties + suffix
    draft = (topic, queue_id, body, properties, flag, sys_flag, born, born_host, times, 0)
    return (
        at + 1,
        producer_group,
        default_topic,
        default_queue_count,
        is_batch,
        reconsume_max,
        features,
        unique_key,
        draft,
    )


def look_over(properties: bytes) -> tuple[int, int, int]:
    """What is notable about encoded properties, and where the unique key's value lies."""
    view = properties
    end = len(properties)
    features = FEATURE_NO_UNIQUE_KEY
    key_start = 0
    key_end = 0
    at = 0
    while at < end:
        name_start = at
        while at < end and view[at] != 1 and view[at] != 2:
            at += 1
        name_end = at
        if at >= end or view[at] != 1 or name_end == name_start:
            features |= FEATURE_UNTIDY
            while at < end and view[at] != 2:
                at += 1
            at += 1
            continue
        at += 1
        value_start = at
        while at < end and view[at] != 2:
            at += 1
        if at == value_start:
            features |= FEATURE_UNTIDY
        first = view[name_start]
        if first == 85:  # U
            if _same(view, name_start, name_end, b"UNIQ_KEY"):
                features &= ~FEATURE_NO_UNIQUE_KEY
                key_start = value_start
                key_end = at
                if not _is_plain(view, value_start, at):
                    features |= FEATURE_UNTIDY
        elif first == 84:  # T
            if _same(view, name_start, name_end, b"TRACE_ON"):
                features |= FEATURE_UNTIDY
            elif _same(view, name_start, name_end, b"TRAN_MSG") or _starts(
                view, name_start, name_end, b"TIMER_"
            ):
                features |= FEATURE_SPECIAL
        elif first == 87:  # W
            if _same(view, name_start, name_end, b"WAIT") and not _is_true(view, value_start, at):
                features |= FEATURE_SPECIAL
        elif first == 77:  # M
            if _same(view, name_start, name_end, b"MSG_REGION"):
                features |= FEATURE_UNTIDY
        elif first == 67:  # C
            if _same(view, name_start, name_end, b"CLUSTER"):
                features |= FEATURE_UNTIDY
        elif first == 80:  # P
            if _same(view, name_start, name_end, b"POP_CK"):
                features |= FEATURE_UNTIDY
        elif first == 68:  # D
            if _same(view, name_start, name_end, b"DELAY"):
                features |= FEATURE_SPECIAL
        elif first == 73:  # I
            if _starts(view, name_start, name_end, b"INNER_"):
                features |= FEATURE_SPECIAL
        elif first == 95:  # _
            if _same(view, name_start, name_end, b"__CRC32#"):
                features |= FEATURE_SPECIAL
        at += 1
    return features, key_start, key_end


def _scan_fields(view: bytes, at: int, end: int, fields: dict[str, str]) -> int:
    """Fill ``fields`` from an object of scalars; returns where it ends, or -1."""
    if at >= end or view[at] != 123:
        return -1
    at += 1
    if at < end and view[at] == 125:
        return at + 1
    while True:
        if at >= end or view[at] != 34:
            return -1
        packed = _string_end(view, at + 1, end)
        if packed < 0 or packed & 3:
            return -1
        key_start = at + 1
        at = (packed >> 2) + 1
        if at - 1 - key_start > _KEY_BYTES_MAX or at >= end or view[at] != 58:
            return -1
        if view[key_start] == 36:  # $, as in a reference to another object
            return -1
        name = view[key_start : at - 1].decode("ascii")
        at += 1
        if at >= end:
            return -1
        if view[at] == 34:
            packed = _string_end(view, at + 1, end)
            if packed < 0:
                return -1
            value_start = at + 1
            at = (packed >> 2) + 1
            if at - 1 - value_start > _VALUE_BYTES_MAX:
                return -1
            value = _text(view, value_start, at - 1, packed & 3)
            if value is None:
                return -1
        else:
            value_start = at
            at = _scalar_end(view, at, end)
            if at < 0:
                return -1
            value = view[value_start:at].decode("ascii")
        fields[name] = value
        if len(fields) > _FIELDS_MAX or at >= end:
            return -1
        if view[at] == 125:
            return at + 1
        if view[at] != 44:
            return -1
        at += 1


def _string_end(view: bytes, at: int, end: int) -> int:
    """Where the closing quote is, times four, plus marks: 1 escaped, 2 not ASCII; -1: none."""
    marks = 0
    while at < end:
        byte = view[at]
        if byte == 34:
            return at << 2 | marks
        if byte == 92:  # \
            marks |= _ESCAPED
            at += 2
        else:
            if byte >= 128:
                marks |= _NOT_ASCII
            at += 1
    return -1


def _scalar_end(view: bytes, at: int, end: int) -> int:
    """The end of a whole number or boolean that stands without quotes; -1 for all else."""
    if at < end and (view[at] == 116 or view[at] == 102):  # t, f
        if _starts(view, at, end, b"true"):
            return at + 4
        if _starts(view, at, end, b"false"):
            return at + 5
        return -1
    return _number_end(view, at, end)


def _number_end(view: bytes, at: int, end: int) -> int:
    """The end of a whole number as JSON allows it, of at most 18 digits; -1 for all else."""
    if at < end and view[at] == 45:  # -
        at += 1
        if at < end and view[at] == 48 and not (at + 1 < end and 48 <= view[at + 1] <= 57):
            return -1
    start = at
    while at < end and 48 <= view[at] <= 57:
        at += 1
    if at == start or at - start > _DIGITS_MAX:
        return -1
    if view[start] == 48 and at - start > 1:
        return -1
    if at < end and (view[at] == 46 or view[at] == 69 or view[at] == 101):
        return -1
    return at


def _is_integer(view: bytes, at: int, end: int) -> bool:
    """Whether the text is a sign and one to 18 digits."""
    if at < end and view[at] == 45:
        at += 1
    if at == end or end - at > _DIGITS_MAX:
        return False
    while at < end:
        if view[at] < 48 or view[at] > 57:
            return False
        at += 1
    return True


def _integer(view: bytes, at: int, end: int) -> int:
    """The value of a text that ``_is_integer`` or ``_number_end`` approved."""
    negative = view[at] == 45
    if negative:
        at += 1
    value = 0
    while at < end:
        value = value * 10 + (view[at] - 48)
        at += 1
    return -value if negative else value


def _is_true(view: bytes, at: int, end: int) -> bool:
    """``true`` in any case, as Java reads it."""
    return (
        end - at == 4
        and (view[at] | 32) == 116
        and (view[at + 1] | 32) == 114
        and (view[at + 2] | 32) == 117
        and (view[at + 3] | 32) == 101
    )


def _is_plain(view: bytes, at: int, end: int) -> bool:
    """Whether a text can stand in JSON as it is."""
    while at < end:
        byte = view[at]
        if byte < 32 or byte >= 127 or byte == 34 or byte == 92:
            return False
        at += 1
    return True


def _same(view: bytes, at: int, end: int, name: bytes) -> bool:
    return end - at == len(name) and _starts(view, at, end, name)


def _starts(view: bytes, at: int, end: int, name: bytes) -> bool:
    if end - at < len(name):
        return False
    for byte in name:
        if view[at] != byte:
            return False
        at += 1
    return True


def _text(view: bytes, start: int, end: int, marks: int) -> str | None:
    raw = _raw(view, start, end, marks)
    return None if raw is None else raw.decode("utf-8")


def _raw(view: bytes, start: int, end: int, marks: int) -> bytes | None:
    """The UTF-8 of a JSON string's content; None when it is not valid or has a surrogate."""
    if marks & _ESCAPED:
        found = _unescaped(view, start, end)
        if found is None:
            return None
    else:
        found = view[start:end]
    if marks and not _is_utf8(found):
        return None
    return found


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _unescaped(view: bytes, start: int, end: int) -> bytes | None:
    out = bytearray(end - start)
    target = out
    at = start
    length = 0
    while at < end:
        byte = view[at]
        if byte != 92:
            target[length] = byte
            length += 1
            at += 1
            continue
        if at + 1 >= end:
            return None
        byte = view[at + 1]
        if byte == 117:  # u
            if at + 6 > end:
                return None
            point = _hex4(view, at + 2)
            if point < 0 or 0xD800 <= point <= 0xDFFF:
                return None
            at += 6
            # An escape takes six bytes and its UTF-8 at most three, so there is always room.
            if point < 0x80:
                target[length] = point
                length += 1
            elif point < 0x800:
                target[length] = 0xC0 | point >> 6
                target[length + 1] = 0x80 | point & 0x3F
                length += 2
            else:
                target[length] = 0xE0 | point >> 12
                target[length + 1] = 0x80 | point >> 6 & 0x3F
                target[length + 2] = 0x80 | point & 0x3F
                length += 3
            continue
        byte = _escape(byte)
        if byte < 0:
            return None
        target[length] = byte
        length += 1
        at += 2
    return bytes(out[:length])


def _escape(byte: int) -> int:
    """What ``\\byte`` stands for; -1 for what JSON does not have."""
    if byte == 34 or byte == 92 or byte == 47:
        return byte
    if byte == 110:
        return 10
    if byte == 116:
        return 9
    if byte == 114:
        return 13
    if byte == 98:
        return 8
    if byte == 102:
        return 12
    return -1


def _hex4(view: bytes, at: int) -> int:
    value = 0
    for index in range(at, at + 4):
        byte = view[index]
        if 48 <= byte <= 57:
            digit = byte - 48
        elif 97 <= byte <= 102:
            digit = byte - 87
        elif 65 <= byte <= 70:
            digit = byte - 55
        else:
            return -1
        value = value << 4 | digit
    return value


def _u32(view: bytes, at: int) -> int:
    value = view[at]
    value = value << 8 | view[at + 1]
    value = value << 8 | view[at + 2]
    return value << 8 | view[at + 3]
