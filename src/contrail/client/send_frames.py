"""Sends as bytes: the parts that all messages of a queue share are encoded once per queue."""

from __future__ import annotations

import json
from collections.abc import Mapping

from contrail.client.message import MessageQueue
from contrail.client.outgoing import Outgoing
from contrail.client.producer_settings import ProducerSettings
from contrail.errors import LocalProtocolError, MessageInvalid
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import (
    ANNOUNCED_VERSION,
    Request,
    encode_request,
    frame_prefix,
)
from contrail.protocol.sends import LETTERS
from contrail.protocol.signing import Credentials, CredentialSource, current, signed_fields

_quote = json.encoder.encode_basestring
_LETTER = {name: letter for letter, name in LETTERS.items()}
_TEMPLATES_MAX = 10_000


class SendFrames:
    """Encodes the sends of one producer group."""

    def __init__(
        self,
        group: str,
        settings: ProducerSettings,
        language: str,
        credentials: CredentialSource | None = None,
    ) -> None:
        """With ``credentials`` every send is signed, and none has parts that others share."""
        self._credentials = credentials
        self._group = group
        self._settings = settings
        self._language = language
        self._templates: dict[MessageQueue, str] = {}

    def encode(
        self, outgoing: Outgoing, queue: MessageQueue, *, opaque: int, flag: int, now_ms: int
    ) -> bytes:
        """The frame of one message for one queue.

        Raises:
            MessageInvalid: the frame is longer than any broker accepts.
        """
        if self._credentials is not None:
            return self._signed(outgoing, queue, current(self._credentials), opaque, flag, now_ms)
        template = self._templates.get(queue)
        if (
            template is None
            or outgoing.code is not RequestCode.SEND_MESSAGE_V2
            or outgoing.producer_group is not None
            or outgoing.is_batch
        ):
            template = self._template(outgoing, queue)
        header = (
            template
            % (
                outgoing.sys_flag,
                now_ms,
                outgoing.flag,
                _quote(properties_text(outgoing.properties)),
                outgoing.reconsume_times,
                _max_reconsume(outgoing.max_reconsume_times),
                flag,
                opaque,
            )
        ).encode("utf-8", "replace")
        body = outgoing.body
        try:
            return frame_prefix(len(header), len(body)) + header + body
        except LocalProtocolError as error:
            raise _too_long(outgoing, error) from error

    def _signed(
        self,
        outgoing: Outgoing,
        queue: MessageQueue,
        credentials: Credentials,
        opaque: int,
        flag: int,
        now_ms: int,
    ) -> bytes:
        named = {
            **self._constant(outgoing.producer_group or self._group, queue, outgoing.is_batch),
            "sysFlag": str(outgoing.sys_flag),
            "bornTimestamp": str(now_ms),
            "flag": str(outgoing.flag),
            "properties": properties_text(outgoing.properties),
            "reconsumeTimes": str(outgoing.reconsume_times),
        }
        if outgoing.max_reconsume_times is not None:
            named["maxReconsumeTimes"] = str(outgoing.max_reconsume_times)
        fields = {_LETTER[name]: text for name, text in named.items()}
        signed = signed_fields(fields, outgoing.body, credentials)
        request = Request(
            outgoing.code, opaque, signed, outgoing.body, flag, language=self._language
        )
        try:
            return encode_request(request)
        except LocalProtocolError as error:
            raise _too_long(outgoing, error) from error

    def _template(self, outgoing: Outgoing, queue: MessageQueue) -> str:
        is_usual = (
            outgoing.code is RequestCode.SEND_MESSAGE_V2
            and outgoing.producer_group is None
            and not outgoing.is_batch
        )
        template = self._build_template(
            outgoing.code, outgoing.producer_group or self._group, queue, outgoing.is_batch
        )
        if is_usual:
            if len(self._templates) >= _TEMPLATES_MAX:
                self._templates.clear()
            self._templates[queue] = template
        return template

    def _build_template(
        self, code: RequestCode, group: str, queue: MessageQueue, is_batch: bool
    ) -> str:
        constant = self._constant(group, queue, is_batch)
        pairs = ",".join(f'"{_LETTER[name]}":{_quote(text)}' for name, text in constant.items())
        head = f'{{"code":{code:d},"extFields":{{{pairs}'.replace("%", "%%")
        changing = ",".join(
            f'"{_LETTER[name]}":{form}'
            for name, form in (
                ("sysFlag", '"%d"'),
                ("bornTimestamp", '"%d"'),
                ("flag", '"%d"'),
                ("properties", "%s"),
                ("reconsumeTimes", '"%d"%s'),
            )
        )
        return (
            f'{head},{changing}}},"flag":%d,"language":"{self._language}","opaque":%d,'
            f'"serializeTypeCurrentRPC":"JSON","version":{ANNOUNCED_VERSION}}}'
        )

    def _constant(self, group: str, queue: MessageQueue, is_batch: bool) -> dict[str, str]:
        settings = self._settings
        return {
            "producerGroup": group,
            "topic": queue.topic,
            "defaultTopic": settings.create_topic_key,
            "defaultTopicQueueNums": str(settings.default_topic_queue_nums),
            "queueId": str(queue.queue_id),
            "unitMode": "false",
            "batch": "true" if is_batch else "false",
            "bname": queue.broker_name,
        }


def _too_long(outgoing: Outgoing, error: LocalProtocolError) -> MessageInvalid:
    return MessageInvalid(
        f"a message for topic {outgoing.topic!r} is too long: {error}; send it in parts"
    )


def properties_text(properties: Mapping[str, str]) -> str:
    """Properties as encoded in a send."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])


def _max_reconsume(times: int | None) -> str:
    return "" if times is None else f',"{_LETTER["maxReconsumeTimes"]}":"{times}"'
