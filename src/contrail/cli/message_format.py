r"""How messages are shown: a small language of ``%`` letters, and JSON. No I/O.

    ======  ==================  ======  =====================  ======  ==========================
    ``%t``  topic               ``%b``  body, byte for byte    ``%i``  message id
    ``%q``  queue id            ``%s``  body size in bytes     ``%h``  broker name
    ``%o``  queue offset        ``%T``  store time             ``%p``  properties, ``a=1,b=2``
    ``%k``  keys                ``%B``  born time              ``%r``  times retried
    ``%g``  tags                ``%%``  a percent sign
    ======  ==================  ======  =====================  ======  ==========================

Behind a backslash: ``\n``, ``\r``, ``\t``, ``\0`` and ``\\``. A field that a message lacks is
empty.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable

from contrail.cli.output import time_text
from contrail.client.message import ReceivedMessage
from contrail.errors import ConfigError

DEFAULT_FORMAT = r"%T %h:%q@%o tags=%g keys=%k %b\n"

Render = Callable[[ReceivedMessage], bytes]

_TOKEN = re.compile(r"%(.?)|\\(.?)|[^%\\]+", re.DOTALL)
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_LETTERS: dict[str, Render] = {
    "t": lambda message: message.topic.encode(),
    "q": lambda message: b"%d" % message.queue.queue_id,
    "o": lambda message: b"%d" % message.queue_offset,
    "k": lambda message: " ".join(message.keys).encode("utf-8", "replace"),
    "b": lambda message: bytes(message.body),
    "T": lambda message: time_text(message.store_timestamp_ms).encode(),
    "B": lambda message: time_text(message.born_timestamp_ms).encode(),
    "g": lambda message: (message.tags or "").encode("utf-8", "replace"),
    "p": lambda message: _pairs(message.properties).encode("utf-8", "replace"),
    "i": lambda message: message.message_id.encode(),
    "h": lambda message: message.queue.broker_name.encode(),
    "s": lambda message: b"%d" % len(message.body),
    "r": lambda message: b"%d" % message.reconsume_times,
    "%": lambda message: b"%",
}


def compile_format(text: str) -> Render:
    """A function that turns a message into the bytes of the format ``text``.

    Raises:
        ConfigError: a letter behind a percent sign or a backslash is unknown.
    """
    parts = [_part(match, text) for match in _TOKEN.finditer(text)]

    def render(message: ReceivedMessage) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(message) for part in parts)

    return render


def _part(match: re.Match[str], text: str) -> bytes | Render:
    token, letter, escape = match[0], match[1], match[2]
    if letter is not None:
        if letter not in _LETTERS:
            raise _unknown(
                text, token, f"the letters are {' '.join('%' + one for one in _LETTERS)}"
            )
        return _LETTERS[letter]
    if escape is not None:
        if escape not in _ESCAPES:
            raise _unknown(text, token, f"there are {' '.join(chr(92) + one for one in _ESCAPES)}")
        return _ESCAPES[escape]
    return token.encode("utf-8", "surrogateescape")


def _unknown(text: str, token: str, known: str) -> ConfigError:
    return ConfigError(f"format {text!r}: {token!r} means nothing, {known}")


def _pairs(properties: dict[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in properties.items())


def message_fields(message: ReceivedMessage) -> dict[str, object]:
    """A message as JSON has it; the body is text, or base64 where it is no UTF-8.

    ``decode_error`` is there only where the message could not be decoded.
    """
    error = message.decode_error
    return {
        "topic": message.topic,
        "broker_name": message.queue.broker_name,
        "queue_id": message.queue.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "born_timestamp_ms": message.born_timestamp_ms,
        "store_timestamp_ms": message.store_timestamp_ms,
        "born_host": message.born_host,
        "reconsume_times": message.reconsume_times,
        "body_bytes": len(message.body),
        **({} if error is None else {"decode_error": str(error)}),
        **body_field(message.body),
    }


def body_field(body: bytes) -> dict[str, str]:
    """``body`` for UTF-8, ``body_base64`` for other bytes."""
    try:
        return {"body": bytes(body).decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def for_terminal(data: bytes) -> str:
    """Text that cannot steer a terminal: other control characters than line ends are escaped."""
    text = data.decode("utf-8", "replace")
    return "".join(
        one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode()
        for one in text
    )
