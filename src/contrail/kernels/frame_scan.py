"""Finds whole frames in received bytes and takes the fast ones apart in one pass.

A frame is ``total(4) type(1) header_length(3) header body``. ``scan_frames`` reads JSON headers in
the plain form that clients write, and of binary headers those of sends and pulls; a header it does
not fully understand is handed back as places in the buffer, for the general decoder. A binary
header is ``code(2) language(1) version(2) opaque(4) flag(4) remark_length(4) remark
fields_length(4)`` and fields, each ``name_length(2) name value_length(4) value``.

The shapes of an item are told apart by length:

====== ==========================================================================================
length item
====== ==========================================================================================
4      ``(header_type, header_start, header_end, frame_end)``: to be decoded by the caller
8      ``(code, opaque, fields, body, flag, version, language, remark)``: any other frame
9      a pull: ``(opaque, flag, version, code, key, queue_offset, count_max, commit_offset,
       header)``. ``key`` holds all fields that stay the same while a consumer reads on,
       ``commit_offset`` is -1 when there is none, and ``header`` is the header as it came
12     a send in the short spelling: ``(opaque, flag, version, code, producer_group,
       default_topic, default_queue_count, is_batch, reconsume_max, features, unique_key, draft)``
====== ==========================================================================================

``draft`` is ready for the record kernel: ``(topic, queue_id, body, properties, flag, sys_flag,
born_timestamp_ms, born_host, reconsume_times, 0)``. Its properties end with ``suffix`` when
``features`` is 0; otherwise they are as they came, and the bits say what needs a second look.
"""

from __future__ import annotations

from typing import Any

from contrail.kernels import raw_bytes

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
# Not a kind: whole frames were left for the next scan because of ``request_bytes_max``.
FRAMES_LEFT = 4
KIND_SEND = 8
COUNT_MAX = 0x7FFFFFFF
_PULL_SEEN = 1
_OTHER_SEEN = KIND_OTHER
_LEFT_SEEN = FRAMES_LEFT
_SEND_SEEN = KIND_SEND

# How a Java client's header begins.
_SEND_BEGINS = b'{"code":310,'
SEND_V2 = 310
_SEND_BATCH = 320
_PULL = 11
_LITE_PULL = 361
_RESPONSE_FLAG = 1
_FIELDS_MAX = 256
_KEY_BYTES_MAX = 256
VALUE_BYTES_MAX = 65_536
_ESCAPED = 1
NOT_ASCII = 2
# All of a to h must be there.
_REQUIRED_LETTERS = 255
_PROPERTIES_SEEN = 256
DIGITS_MAX = 18
I32_MAX = 2147483647

Item = tuple[Any, ...]
TYPE_BINARY = 1
# Everything before a remark, and the length of the fields behind an empty one.
_BINARY_HEAD_BYTES = 21
_TAKEN: Item = ()
"""Stands for a send whose parts are noted in a ``Send`` and nowhere else."""


def split_frames(buffer: bytes, start: int, frame_bytes_max: int) -> tuple[list[int], int, int]:
    """Flat ``[frame_start, frame_end, ...]`` of the whole frames, where they end, a problem."""
    view = buffer
    available = len(buffer)
    position = start
    places: list[int] = []
    while available - position >= 4:
        total = raw_bytes.u32(view, position)
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
    count_max: int = COUNT_MAX,
    request_bytes_max: int = COUNT_MAX,
) -> tuple[list[Item], int, int, int]:
    """The items of whole frames, where they end, a problem, and which kinds there are.

    There are no more than ``count_max`` items, and those that are no sends have no more than
    ``request_bytes_max`` together, unless the first item alone has more.

    Bits of the last are ``KIND_SEND`` when some are sends, ``KIND_OTHER`` when some are neither
    sends nor pulls, 1 when some are pulls, and ``FRAMES_LEFT`` when the bytes ended the scan.
    """
    view = buffer
    available = len(buffer)
    position = start
    items: list[Item] = []
    kinds = 0
    send = Send()
    left = count_max
    bytes_left = request_bytes_max
    while available - position >= 8 and left > 0:
        left -= 1
        total = raw_bytes.u32(view, position)
        if total < 4 or total + 4 > frame_bytes_max:
            return items, position, PROBLEM_TOTAL, kinds
        if available - position - 4 < total:
            break
        header_bytes = raw_bytes.u32(view, position + 4) & 0xFFFFFF
        header_start = position + 8
        header_end = header_start + header_bytes
        frame_end = position + 4 + total
        if header_end > frame_end:
            return items, position, PROBLEM_HEADER_LENGTH, kinds
        if header_bytes > header_bytes_max:
            return items, position, PROBLEM_HEADER_TOO_LONG, kinds
        item = None
        if view[position + 4] <= TYPE_BINARY:
            item = scan_header(view, view[position + 4], header_start, header_end, frame_end, send)
            if item is not None and not item:
                item = _send_item(view, send, view[header_end:frame_end], born_host, suffix)
        if item is None:
            item = (view[position + 4], header_start, header_end, frame_end)
        if len(item) != 12:
            bytes_left -= frame_end - position
            if bytes_left < 0 and items:
                return items, position, PROBLEM_NONE, kinds | _LEFT_SEEN
            kinds |= _PULL_SEEN if len(item) == 9 else _OTHER_SEEN
        else:
            kinds |= _SEND_SEEN
        items.append(item)
        position = frame_end
    return items, position, PROBLEM_NONE, kinds


class Send:
    """The parts of one send, as places and numbers; one object serves all of a scan."""

    def __init__(self) -> None:
        self.opaque = 0
        self.request_flag = 0
        self.version = 0
        self.code = 0
        self.group_at = self.group_end = self.group_marks = 0
        self.topic_at = self.topic_end = self.topic_marks = 0
        self.default_topic_at = self.default_topic_end = self.default_topic_marks = 0
        self.properties_at = self.properties_end = self.properties_marks = 0
        # Whether texts stand as they are, without JSON's escapes.
        self.is_binary = False
        # Where the values lie that neighbours of one client differ in; -1 without an opaque.
        self.opaque_at = self.opaque_end = -1
        self.queue_id_at = self.queue_id_end = 0
        self.born_at = self.born_end = 0
        self.default_queue_count = 0
        self.queue_id = 0
        self.sys_flag = 0
        self.born = 0
        self.flag = 0
        self.times = 0
        self.reconsume_max = -1
        self.is_batch = False
        # The features that ``look_over_at`` found in the properties.
        self.features = 0
        self.key_at = self.key_end = 0
        self.keys_at = self.keys_end = 0
        self.tags_at = self.tags_end = 0
        self.is_fifo = False


def is_one_send(buffer: bytes) -> bool:
    """Whether these bytes are one whole frame that begins as a Java client's send does."""
    view = buffer
    available = len(buffer)
    if available < 8 + len(_SEND_BEGINS) or raw_bytes.u32(view, 0) + 4 != available:
        return False
    return _starts(view, 8, available, _SEND_BEGINS)


def scan_header(
    view: bytes, header_type: int, at: int, end: int, frame_end: int, send: Send
) -> Item | None:
    """The item of a header, or None; ``_TAKEN`` for a send, which is noted."""
    if header_type == TYPE_BINARY:
        return _scan_binary(view, at, end, frame_end, send)
    return _scan_json(view, at, end, frame_end, send)


def _scan_binary(view: bytes, at: int, end: int, frame_end: int, send: Send) -> Item | None:
    """As ``_scan_json``, for sends and pulls with a binary header and no remark."""
    if end - at < _BINARY_HEAD_BYTES:
        return None
    code = raw_bytes.u16(view, at)
    version = raw_bytes.u16(view, at + 3)
    flag = raw_bytes.u32(view, at + 9)
    # A number that is negative in Java, or a remark, is rare and left to the general decoder.
    if version > 32_767 or flag > I32_MAX or raw_bytes.u32(view, at + 13):
        return None
    opaque = raw_bytes.u32(view, at + 5)
    if opaque > I32_MAX:
        opaque -= 4294967296
    fields_at = at + _BINARY_HEAD_BYTES
    if raw_bytes.u32(view, at + 17) != end - fields_at:
        return None
    if code == SEND_V2 or code == _SEND_BATCH:
        if flag & _RESPONSE_FLAG or not _scan_binary_send(view, fields_at, end, send):
            return None
        send.opaque = opaque
        send.request_flag = flag
        send.version = version
        send.code = code
        return _TAKEN
    if (code == _PULL or code == _LITE_PULL) and flag == 0 and end == frame_end:
        pull = _scan_binary_pull(view, fields_at, end)
        if pull is not None:
            return (opaque, flag, version, code, *pull, view[at:end])
    return None


def _scan_binary_send(view: bytes, at: int, end: int, send: Send) -> bool:
    """Note the one-letter fields; False when a field is for the general decoder."""
    _begin_send(send, True)
    seen = 0
    count = 0
    while at < end:
        name_at = at + 2
        value_at = _binary_value_at(view, at, end)
        if value_at < 0:
            return False
        at = value_at + raw_bytes.u32(view, value_at - 4)
        count += 1
        if count > _FIELDS_MAX or at - value_at > VALUE_BYTES_MAX:
            return False
        # An empty value is none.
        if at > value_at:
            letter = view[name_at] if value_at - 4 - name_at == 1 else 0
            seen = _note_field(
                view, letter, value_at, at, _binary_marks(view, value_at, at), seen, send
            )
            if seen < 0:
                return False
    return seen & _REQUIRED_LETTERS == _REQUIRED_LETTERS


def _scan_binary_pull(view: bytes, at: int, end: int) -> Item | None:
    """The stable part of a pull's fields, and the numbers; None for the general decoder."""
    stable = bytearray()
    queue_offset = -1
    count_max = -1
    commit_offset = -1
    count = 0
    while at < end:
        start = at
        name_at = at + 2
        value_at = _binary_value_at(view, at, end)
        if value_at < 0:
            return None
        name_end = value_at - 4
        at = value_at + raw_bytes.u32(view, name_end)
        count += 1
        if count > _FIELDS_MAX or at - value_at > VALUE_BYTES_MAX:
            return None
        if same(view, name_at, name_end, b"queueOffset"):
            queue_offset = _digits(view, value_at, at)
            if queue_offset < 0:
                return None
        elif same(view, name_at, name_end, b"maxMsgNums"):
            count_max = _digits(view, value_at, at)
            if count_max < 0:
                return None
        elif same(view, name_at, name_end, b"commitOffset"):
            commit_offset = _digits(view, value_at, at)
            if commit_offset < 0:
                return None
        elif _binary_marks(view, value_at, at):
            return None
        else:
            # How long a pull may be held is stable: pulls of one key are held alike.
            if same(view, name_at, name_end, b"suspendTimeoutMillis"):
                if _digits(view, value_at, at) < 0:
                    return None
            # With the lengths, so that no two sets of fields look alike.
            stable += view[start:at]
    if queue_offset < 0 or count_max < 0:
        return None
    return (bytes(stable), queue_offset, count_max, commit_offset)


def _binary_value_at(view: bytes, at: int, end: int) -> int:
    """Where the value of the field at ``at`` begins; -1 when it reaches past ``end``."""
    if end - at < 6:
        return -1
    name_bytes = raw_bytes.u16(view, at)
    value_at = at + 6 + name_bytes
    if name_bytes == 0 or name_bytes > _KEY_BYTES_MAX or value_at > end:
        return -1
    if (
        _binary_marks(view, at + 2, value_at - 4)
        or raw_bytes.u32(view, value_at - 4) > end - value_at
    ):
        return -1
    return value_at


def _binary_marks(view: bytes, at: int, end: int) -> int:
    while at < end:
        if view[at] >= 128:
            return NOT_ASCII
        at += 1
    return 0


def _scan_json(
    view: bytes,
    at: int,
    end: int,
    frame_end: int,
    send: Send,
) -> Item | None:
    """The item of a JSON header in plain form, or None; ``_TAKEN`` for a send, which is noted."""
    code = -1
    flag = 0
    opaque = 0
    opaque_at = opaque_end = -1
    version = 0
    language_at = language_end = -1
    remark: str | None = None
    fields: dict[str, str] | None = None
    is_send = False
    pull: Item | None = None
    header_start = at
    if at >= end or view[at] != 123:  # {
        return None
    at += 1
    while True:
        if at >= end or view[at] != 34:  # "
            return None
        packed = string_end(view, at + 1, end)
        if packed < 0 or packed & 3:
            return None
        key_start = at + 1
        key_end = packed >> 2
        at = key_end + 1
        if at >= end or view[at] != 58:  # :
            return None
        at += 1
        kind = view[key_start] if key_end > key_start else 0
        if same(view, key_start, key_end, b"extFields"):
            if fields is not None or is_send or pull is not None:
                return None
            if code == SEND_V2 or code == _SEND_BATCH:
                is_send = True
                at = _scan_send(view, at, end, send)
                if at < 0:
                    return None
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
            packed = string_end(view, at + 1, end)
            if packed < 0:
                return None
            value_start = at + 1
            at = (packed >> 2) + 1
            if same(view, key_start, key_end, b"remark"):
                remark = _text(view, value_start, at - 1, packed & 3)
                if remark is None:
                    return None
            elif same(view, key_start, key_end, b"language"):
                if packed & 3:
                    return None
                language_at = value_start
                language_end = at - 1
            elif kind == 99 or kind == 102 or kind == 111 or kind == 118:
                # code, flag, opaque or version as text: rare, and left to the general decoder.
                return None
            elif packed & 3 and _raw(view, value_start, at - 1, packed & 3) is None:
                return None
        else:
            value_start = at
            at = _number_end(view, at, end)
            if at < 0 or at - value_start > 11:
                return None
            if same(view, key_start, key_end, b"language") or same(
                view, key_start, key_end, b"remark"
            ):
                return None
            number = _integer(view, value_start, at)
            if number > I32_MAX or number < -I32_MAX - 1:
                return None
            if same(view, key_start, key_end, b"code"):
                code = number
            elif same(view, key_start, key_end, b"flag"):
                flag = number
            elif same(view, key_start, key_end, b"opaque"):
                opaque = number
                opaque_at = value_start
                opaque_end = at
            elif same(view, key_start, key_end, b"version"):
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
    if is_send:
        if flag & _RESPONSE_FLAG or (code != SEND_V2 and code != _SEND_BATCH):
            return None
        send.opaque = opaque
        send.opaque_at = opaque_at
        send.opaque_end = opaque_end
        send.request_flag = flag
        send.version = version
        send.code = code
        return _TAKEN
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
    language = "JAVA" if language_at < 0 else view[language_at:language_end].decode("ascii")
    return (code, opaque, fields, view[end:frame_end], flag, version, language, remark)


def _scan_pull(view: bytes, at: int, end: int) -> Item | None:
    """Where the fields end, their stable part, and the numbers; None for the general decoder."""
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
        packed = string_end(view, at + 1, end)
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
        packed = string_end(view, value_start, end)
        if packed < 0 or packed & 3:
            return None
        at = (packed >> 2) + 1
        count += 1
        if count > _FIELDS_MAX or at - 1 - value_start > VALUE_BYTES_MAX:
            return None
        if same(view, key_start, key_end, b"queueOffset"):
            queue_offset = _digits(view, value_start, at - 1)
            if queue_offset < 0:
                return None
        elif same(view, key_start, key_end, b"maxMsgNums"):
            count_max = _digits(view, value_start, at - 1)
            if count_max < 0:
                return None
        elif same(view, key_start, key_end, b"commitOffset"):
            commit_offset = _digits(view, value_start, at - 1)
            if commit_offset < 0:
                return None
        else:
            # How long a pull may be held is stable: pulls of one key are held alike.
            if same(view, key_start, key_end, b"suspendTimeoutMillis"):
                if _digits(view, value_start, at - 1) < 0:
                    return None
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
    if at >= end or end - at > DIGITS_MAX:
        return -1
    number = 0
    while at < end:
        digit = view[at]
        if digit < 48 or digit > 57:
            return -1
        number = number * 10 + digit - 48
        at += 1
    return number


def _scan_send(view: bytes, at: int, end: int, send: Send) -> int:
    """Note the one-letter fields; where they end, or -1 for the general decoder."""
    _begin_send(send, False)
    seen = 0
    count = 0
    if at >= end or view[at] != 123:
        return -1
    at += 1
    while True:
        if at >= end or view[at] != 34:
            return -1
        packed = string_end(view, at + 1, end)
        if packed < 0 or packed & 3:
            return -1
        key_start = at + 1
        at = (packed >> 2) + 1
        key_bytes = at - 1 - key_start
        if key_bytes > _KEY_BYTES_MAX or at >= end or view[at] != 58:
            return -1
        at += 1
        if at >= end:
            return -1
        marks = 0
        if view[at] == 34:
            packed = string_end(view, at + 1, end)
            if packed < 0:
                return -1
            marks = packed & 3
            value_start = at + 1
            value_end = packed >> 2
            at = value_end + 1
        else:
            value_start = at
            value_end = _scalar_end(view, at, end)
            if value_end < 0:
                return -1
            at = value_end
        if value_end - value_start > VALUE_BYTES_MAX:
            return -1
        count += 1
        if count > _FIELDS_MAX:
            return -1
        letter = view[key_start] if key_bytes == 1 else 0
        seen = _note_field(view, letter, value_start, value_end, marks, seen, send)
        if seen < 0 or at >= end:
            return -1
        if view[at] == 125:
            break
        if view[at] != 44:
            return -1
        at += 1
    return at + 1 if seen & _REQUIRED_LETTERS == _REQUIRED_LETTERS else -1


def _begin_send(send: Send, is_binary: bool) -> None:
    """Forget the fields that the next send may be without."""
    send.properties_at = send.properties_end = send.properties_marks = 0
    send.is_binary = is_binary
    send.times = 0
    send.reconsume_max = -1
    send.is_batch = False


def _note_field(
    view: bytes, letter: int, value_start: int, value_end: int, marks: int, seen: int, send: Send
) -> int:
    """Note a field; the fields of the send seen so far, or -1 for the general decoder.

    ``letter`` is 0 for a field whose name is longer than one.
    """
    # When a field occurs twice, the general decoder says which text counts.
    if letter == 105:  # i
        if seen & _PROPERTIES_SEEN:
            return -1
        send.properties_at = value_start
        send.properties_end = value_end
        send.properties_marks = marks
        return seen | _PROPERTIES_SEEN
    if letter == 98:  # b
        if seen & 2:
            return -1
        send.topic_at = value_start
        send.topic_end = value_end
        send.topic_marks = marks
        return seen | 2
    if letter == 97:  # a
        if seen & 1:
            return -1
        send.group_at = value_start
        send.group_end = value_end
        send.group_marks = marks
        return seen | 1
    if letter == 99:  # c
        if seen & 4:
            return -1
        send.default_topic_at = value_start
        send.default_topic_end = value_end
        send.default_topic_marks = marks
        return seen | 4
    if letter == 109:  # m
        if marks:
            return -1
        send.is_batch = _is_true(view, value_start, value_end)
        return seen
    if letter == 107:  # k
        return -1 if marks or _is_true(view, value_start, value_end) else seen
    if 100 <= letter <= 108:
        if marks or not _is_integer(view, value_start, value_end):
            return -1
        if letter == 101:  # e
            send.queue_id_at = value_start
            send.queue_id_end = value_end
        elif letter == 103:  # g
            send.born_at = value_start
            send.born_end = value_end
        return _note_number(letter, _integer(view, value_start, value_end), seen, send)
    if marks and _raw(view, value_start, value_end, marks) is None:
        return -1
    return seen


def _note_number(letter: int, number: int, seen: int, send: Send) -> int:
    if letter == 103:  # g
        send.born = number
        return seen | 64
    if number > I32_MAX or number < -I32_MAX - 1:
        return -1
    if letter == 100:  # d
        send.default_queue_count = number
        return seen | 8
    if letter == 101:  # e
        send.queue_id = number
        return seen | 16
    if letter == 102:  # f
        send.sys_flag = number
        return seen | 32
    if letter == 104:  # h
        send.flag = number
        return seen | 128
    if letter == 106:  # j
        send.times = number
    elif letter == 108:  # l
        send.reconsume_max = number
    return seen


def _send_item(
    view: bytes, send: Send, body: bytes, born_host: bytes, suffix: bytes
) -> Item | None:
    """A send as an item; None when a text in it is not valid."""
    producer_group = _raw(view, send.group_at, send.group_end, send.group_marks)
    topic = _raw(view, send.topic_at, send.topic_end, send.topic_marks)
    default_topic = _raw(
        view, send.default_topic_at, send.default_topic_end, send.default_topic_marks
    )
    properties = _raw(view, send.properties_at, send.properties_end, send.properties_marks)
    if producer_group is None or topic is None or default_topic is None or properties is None:
        return None
    look_over_at(properties, 0, len(properties), send)
    unique_key = b""
    if send.features == 0:
        unique_key = properties[send.key_at : send.key_end]
        if properties[len(properties) - 1] != 2:
            properties = properties + b"\x02" + suffix
        else:
            properties = properties + suffix
    draft = (
        topic,
        send.queue_id,
        body,
        properties,
        send.flag,
        send.sys_flag,
        send.born,
        born_host,
        send.times,
        0,
    )
    return (
        send.opaque,
        send.request_flag,
        send.version,
        send.code,
        producer_group,
        default_topic,
        send.default_queue_count,
        send.is_batch,
        send.reconsume_max,
        send.features,
        unique_key,
        draft,
    )


def look_over(properties: bytes) -> tuple[int, int, int]:
    """The features of encoded properties, and where the unique key's value lies."""
    send = Send()
    look_over_at(properties, 0, len(properties), send)
    return send.features, send.key_at, send.key_end


def look_over_at(view: bytes | bytearray, at: int, end: int, send: Send) -> None:
    features = FEATURE_NO_UNIQUE_KEY
    send.key_at = 0
    send.key_end = 0
    send.keys_at = 0
    send.keys_end = 0
    send.tags_at = 0
    send.tags_end = 0
    send.is_fifo = False
    start = at
    # A set of the names met: a bit for each, chosen by six bits of the name.
    seen = 0
    one = 1
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
        number = (first + 7 * view[name_end - 1] + 13 * (name_end - name_start)) & 63
        if seen >> number & 1 and _is_named_before(view, start, name_start, name_end):
            features |= FEATURE_UNTIDY
        seen |= one << number
        if first == 85:  # U
            if same(view, name_start, name_end, b"UNIQ_KEY"):
                features &= ~FEATURE_NO_UNIQUE_KEY
                send.key_at = value_start
                send.key_end = at
                if not _is_plain(view, value_start, at):
                    features |= FEATURE_UNTIDY
        elif first == 84:  # T
            if same(view, name_start, name_end, b"TAGS"):
                send.tags_at = value_start
                send.tags_end = at
            elif same(view, name_start, name_end, b"TRACE_ON"):
                features |= FEATURE_UNTIDY
            elif _starts(view, name_start, name_end, b"TRAN") or _starts(
                view, name_start, name_end, b"TIMER_"
            ):
                features |= FEATURE_SPECIAL
        elif first == 75:  # K
            if same(view, name_start, name_end, b"KEYS"):
                send.keys_at = value_start
                send.keys_end = at
        elif first == 87:  # W
            if same(view, name_start, name_end, b"WAIT") and not _is_true(view, value_start, at):
                features |= FEATURE_SPECIAL
        elif first == 77:  # M
            if same(view, name_start, name_end, b"MSG_REGION"):
                features |= FEATURE_UNTIDY
        elif first == 67:  # C
            if same(view, name_start, name_end, b"CLUSTER") or same(
                view, name_start, name_end, b"CONTRAIL_RECALL_NONCE"
            ):
                features |= FEATURE_UNTIDY
        elif first == 80:  # P
            if same(view, name_start, name_end, b"POP_CK"):
                features |= FEATURE_UNTIDY
        elif first == 68:  # D
            if same(view, name_start, name_end, b"DELAY"):
                features |= FEATURE_SPECIAL
        elif first == 73:  # I
            if _starts(view, name_start, name_end, b"INNER_"):
                features |= FEATURE_SPECIAL
        elif first == 95:  # _
            if same(view, name_start, name_end, b"__CRC32#"):
                features |= FEATURE_SPECIAL
            elif same(view, name_start, name_end, b"__SHARDINGKEY"):
                send.is_fifo = True
        at += 1
    send.features = features


def _is_named_before(view: bytes | bytearray, at: int, name_start: int, name_end: int) -> bool:
    """Whether one of the pairs from ``at`` on has the name of the pair at ``name_start``."""
    length = name_end - name_start
    while at < name_start:
        count = 0
        while count < length and view[at + count] == view[name_start + count]:
            count += 1
        if count == length and view[at + count] == 1:
            return True
        while at < name_start and view[at] != 2:
            at += 1
        at += 1
    return False


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
        packed = string_end(view, at + 1, end)
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
            packed = string_end(view, at + 1, end)
            if packed < 0:
                return -1
            value_start = at + 1
            at = (packed >> 2) + 1
            if at - 1 - value_start > VALUE_BYTES_MAX:
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


def string_end(view: bytes, at: int, end: int) -> int:
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
                marks |= NOT_ASCII
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
    if at == start or at - start > DIGITS_MAX:
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
    if at == end or end - at > DIGITS_MAX:
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


def _is_true(view: bytes | bytearray, at: int, end: int) -> bool:
    """``true`` in any case, as Java reads it."""
    return (
        end - at == 4
        and (view[at] | 32) == 116
        and (view[at + 1] | 32) == 114
        and (view[at + 2] | 32) == 117
        and (view[at + 3] | 32) == 101
    )


def _is_plain(view: bytes | bytearray, at: int, end: int) -> bool:
    """Whether a text can stand in JSON as it is."""
    while at < end:
        byte = view[at]
        if byte < 32 or byte >= 127 or byte == 34 or byte == 92:
            return False
        at += 1
    return True


def same(view: bytes | bytearray, at: int, end: int, name: bytes) -> bool:
    return end - at == len(name) and _starts(view, at, end, name)


def _starts(view: bytes | bytearray, at: int, end: int, name: bytes) -> bool:
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
    length = unescape(view, start, end, out, 0)
    return None if length < 0 else bytes(out[:length])


def unescape(view: bytes, at: int, end: int, target: bytearray, length: int) -> int:
    """Write a JSON string's content at ``length``; where it ends, or -1 when it is not valid.

    C writes through a bare pointer: the caller made room for as many bytes as are read.
    """
    while at < end:
        byte = view[at]
        if byte != 92:
            target[length] = byte
            length += 1
            at += 1
            continue
        if at + 1 >= end:
            return -1
        byte = view[at + 1]
        if byte == 117:  # u
            if at + 6 > end:
                return -1
            point = hex4(view, at + 2)
            if point < 0 or 0xD800 <= point <= 0xDFFF:
                return -1
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
            return -1
        target[length] = byte
        length += 1
        at += 2
    return length


def _escape(byte: int) -> int:
    """The character of the escape ``\\byte``; -1 for an escape that JSON does not have."""
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


def hex4(view: bytes, at: int) -> int:
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
