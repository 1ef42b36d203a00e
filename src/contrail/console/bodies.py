"""Messages in answers, with their bodies as the caller's role may see them."""

from __future__ import annotations

import base64
import binascii
from http import HTTPStatus

import msgspec

from contrail.client.message import ReceivedMessage
from contrail.console.calls import Call
from contrail.console.problems import Problem
from contrail.console.state.masks import ShownBody, shown_body
from contrail.console.state.roles import Role

_PREVIEW_CHARACTERS = 200


class MessageTold(msgspec.Struct):
    """A stored message; ``queue_offset`` is a text, for it may pass 2^53."""

    topic: str
    broker: str
    queue_id: int
    queue_offset: str
    message_id: str
    offset_message_id: str
    tags: str | None
    keys: list[str]
    properties: dict[str, str]
    born_timestamp_ms: int
    store_timestamp_ms: int
    born_host: str
    reconsume_times: int
    body_bytes: int
    body: ShownBody
    decode_error: str | None


def told(call: Call, message: ReceivedMessage, *, preview: bool = False) -> MessageTold:
    """A message as the caller may see it; with ``preview`` the beginning of its body alone."""
    role = call.known_caller.role
    body = shown_body(bytes(message.body), role, call.parts.config.masks)
    if preview and body.text is not None and len(body.text) > _PREVIEW_CHARACTERS:
        text = body.text[:_PREVIEW_CHARACTERS]
        body = ShownBody(text, None, body.is_hidden, body.is_masked, True)
    # Properties are the application's words, as the body is.
    properties = dict(message.properties) if role >= Role.READER else {}
    error = message.decode_error
    return MessageTold(
        message.topic,
        message.queue.broker_name,
        message.queue.queue_id,
        str(message.queue_offset),
        message.message_id,
        message.offset_message_id,
        message.tags,
        list(message.keys),
        properties,
        message.born_timestamp_ms,
        message.store_timestamp_ms,
        message.born_host,
        message.reconsume_times,
        len(message.body),
        body,
        None if error is None else str(error),
    )


def body_bytes(text: str | None, encoded: str | None) -> bytes | None:
    """The bytes of a body that a request gives as text or as base64; None without either."""
    if text is not None and encoded is not None:
        raise Problem(HTTPStatus.BAD_REQUEST, "body and body_base64: give one of the two")
    if text is not None:
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise Problem(HTTPStatus.BAD_REQUEST, f"body: {error}") from error
    if encoded is None:
        return None
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Problem(HTTPStatus.BAD_REQUEST, f"body_base64: {error}") from error
