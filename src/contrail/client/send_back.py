"""Sends failed messages back to a broker: for a retry, or as dead letters."""

from __future__ import annotations

import logging

from contrail.client.instance import ClientInstance
from contrail.client.message import ReceivedMessage
from contrail.client.outgoing import Outgoing
from contrail.client.sender import Sender
from contrail.client.state.retry_delays import DEAD_LETTER, FIRST_RETRY_LEVEL
from contrail.errors import ClientError
from contrail.model.properties import (
    DELAY,
    MAX_RECONSUME_TIMES,
    ORIGIN_MESSAGE_ID,
    RECONSUME_TIME,
    RETRY_TOPIC,
    TRAN_MSG,
    UNIQ_KEY,
    UNREADABLE,
)
from contrail.model.topic import RETRY_PREFIX
from contrail.protocol.codes import RequestCode

_log = logging.getLogger(__name__)

INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"
_TIMEOUT_MS = 5_000
_REASON_LENGTH_MAX = 500


class SendBack:
    """Sends messages of a group back to the brokers."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        *,
        retries_max: int,
        sender: Sender,
    ) -> None:
        self._instance = instance
        self._group = group
        self._retries_max = retries_max
        self._sender = sender

    async def give_back(self, message: ReceivedMessage, level: int) -> bool:
        """Send a message back for a retry; whether a broker stored it.

        Its own broker is asked first, by physical offset; if that fails, any broker gets a new
        message. A damaged record is sent as a new message at once: its offset may be wrong, and a
        broker's own copy of it would pass for sound.
        """
        error = message.decode_error
        if error is not None and error.is_record_damaged:
            return await self.send_anew(message, level)
        try:
            await self._ask_broker(message, level)
        except ClientError as problem:
            _log.warning("message %s is sent back another way: %s", message.message_id, problem)
            return await self.send_anew(message, level)
        return True

    async def _ask_broker(self, message: ReceivedMessage, level: int) -> None:
        name = message.queue.broker_name
        fields = {
            "offset": str(message.physical_offset),
            "group": self._group,
            "delayLevel": str(level),
            "originMsgId": message.message_id,
            "originTopic": message.topic,
            "unitMode": "false",
            "maxReconsumeTimes": str(self._retries_max),
            "bname": name,
        }
        await self._instance.ask_master(
            name,
            message.queue.topic,
            RequestCode.CONSUMER_SEND_MSG_BACK,
            fields,
            what=f"to take back message {message.message_id} of topic {message.topic!r}",
            timeout_ms=_TIMEOUT_MS,
        )

    async def send_anew(self, message: ReceivedMessage, level: int = 0) -> bool:
        """Send the message to the group's retry topic as an ordinary one; whether it was stored."""
        try:
            await self._sender.send(self._anew(message, level))
        except ClientError as error:
            _log.warning("message %s could not be sent back: %s", message.message_id, error)
            return False
        return True

    def _anew(self, message: ReceivedMessage, level: int) -> Outgoing:
        times, times_max = message.reconsume_times + 1, self._retries_max
        properties = dict(message.properties)
        for name in (TRAN_MSG, RECONSUME_TIME, MAX_RECONSUME_TIMES):
            properties.pop(name, None)
        properties[RETRY_TOPIC] = message.topic
        properties.setdefault(ORIGIN_MESSAGE_ID, message.message_id)
        properties[DELAY] = str(level if level > 0 else FIRST_RETRY_LEVEL + times - 1)
        if message.decode_error is not None:
            # The copy has no such flags and a new checksum: this property marks it as damaged.
            properties[UNREADABLE] = _one_line(str(message.decode_error))
        if level == DEAD_LETTER:
            # The broker makes a message with more retries than allowed a dead letter.
            times_max = min(times_max, times - 1)
        return Outgoing(
            RETRY_PREFIX + self._group,
            message.body,
            properties,
            flag=message.flag,
            unique_id=properties.get(UNIQ_KEY, ""),
            reconsume_times=times,
            max_reconsume_times=times_max,
        )


def _one_line(reason: str) -> str:
    """A reason, cut and cleaned for a property."""
    printable = "".join(one if one.isprintable() else " " for one in reason)
    return printable[:_REASON_LENGTH_MAX]
