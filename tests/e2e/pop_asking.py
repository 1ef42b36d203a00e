"""Questions of a consumer that pops, and of one that looks at what others popped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from contrail.model.message import StoredMessage
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse
from contrail.protocol.pop_info import Receipt, read_offsets, read_start_offsets, retry_flag
from tests.e2e.asking import Asker, messages

TOPIC, GROUP = "orders", "billing"


class Popped(NamedTuple):
    """One message, and its receipt."""

    message: StoredMessage
    receipt: Receipt

    @property
    def body(self) -> bytes:
        return self.message.body


class PopAsker(Asker):
    """A consumer."""

    def now_ms(self) -> int:
        return self.cluster.clock.now_ms()

    def pop_fields(self, **changes: str) -> dict[str, str]:
        fields = {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": "-1",
            "maxMsgNums": "32",
            "invisibleTime": "60000",
            "pollTime": "0",
            "bornTime": str(self.now_ms()),
            "initMode": "0",
        }
        return {**fields, **changes}

    def pop(self, **changes: str) -> ReceivedResponse:
        """A pop that does not wait, unless ``pollTime`` is given."""
        return self.ask(RequestCode.POP_MESSAGE, self.pop_fields(**changes))

    def popped(self, **changes: str) -> list[Popped]:
        """The messages of a pop with their receipts, as clients put them together."""
        return popped(self.pop(**changes))

    def popped_all(self, count: int, **changes: str) -> list[Popped]:
        """Pop until that many messages came; each pop looks at one retry topic only."""
        found: list[Popped] = []
        while len(found) < count:
            more = self.popped(**changes)
            assert more, f"{len(found)} of {count} messages came"
            found += more
        return found

    def ack(self, one: Popped, **changes: str) -> ReceivedResponse:
        return self.ask(RequestCode.ACK_MESSAGE, {**receipt_fields(one), **changes})

    def prolong(self, one: Popped, invisible_ms: int, **changes: str) -> ReceivedResponse:
        fields = {**receipt_fields(one), "invisibleTime": str(invisible_ms), **changes}
        return self.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)


def popped(answer: ReceivedResponse) -> list[Popped]:
    if answer.code != ResponseCode.SUCCESS:
        assert answer.code == ResponseCode.POLLING_TIMEOUT, (answer.code, answer.remark)
        return []
    starts = read_start_offsets(answer.fields["startOffsetInfo"])
    offsets = read_offsets(answer.fields["msgOffsetInfo"])
    found = [_named(answer, starts, offsets, one) for one in messages(answer)]
    assert not any(offsets.values()), "the lists name the messages of the body, and no others"
    return found


def _named(
    answer: ReceivedResponse,
    starts: dict[tuple[str, int], int],
    offsets: dict[tuple[str, int], list[int]],
    message: StoredMessage,
) -> Popped:
    text = message.properties.get("POP_CK")
    if text is not None:
        receipt = Receipt.decode(text)
        offsets[receipt.retry_flag, message.queue_id].remove(message.queue_offset)
        return Popped(message, receipt)
    key = retry_flag(message.topic), message.queue_id
    receipt = Receipt(
        starts[key],
        int(answer.fields["popTime"]),
        int(answer.fields["invisibleTime"]),
        int(answer.fields["reviveQid"]),
        key[0],
        "broker-a",
        message.queue_id,
        offsets[key].pop(0),
    )
    return Popped(message, receipt)


def receipt_fields(one: Popped, group: str = GROUP, topic: str = TOPIC) -> dict[str, str]:
    receipt = one.receipt
    return {
        "consumerGroup": group,
        "topic": {"0": topic, "1": f"%RETRY%{group}_{topic}"}.get(
            receipt.retry_flag, f"%RETRY%{group}+{topic}"
        ),
        "queueId": str(receipt.queue_id),
        "offset": str(receipt.queue_offset),
        "extraInfo": receipt.encode(),
    }


def bodies(found: Sequence[Popped]) -> list[bytes]:
    return sorted(one.body for one in found)
