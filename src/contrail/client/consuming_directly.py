"""One message for the handler on an operator's request; it acknowledges nothing."""

from __future__ import annotations

import logging

from contrail.client.consumed_message import as_consumed
from contrail.client.consuming import HandlerRun
from contrail.client.message import ReceivedMessage
from contrail.client.pulling import restore_topic
from contrail.clock import monotonic_ms
from contrail.model.topic import RETRY_PREFIX

_log = logging.getLogger(__name__)


async def consume_directly(
    run: HandlerRun | None, message: ReceivedMessage, *, is_orderly: bool
) -> dict[str, object]:
    """A ConsumeMessageDirectlyResult."""
    started_ms = monotonic_ms()
    remark: str | None = None
    if run is None:
        result, remark = "CR_THROW_EXCEPTION", "this consumer has no handler: it loops"
    elif message.decode_error is not None:
        result, remark = "CR_THROW_EXCEPTION", str(message.decode_error)
    else:
        if message.topic.startswith(RETRY_PREFIX):
            restore_topic(message)
        try:
            result = "CR_SUCCESS" if await run([as_consumed(message)]) else "CR_LATER"
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            _log.warning("message %s, handled directly, failed", message.message_id, exc_info=error)
            result, remark = "CR_THROW_EXCEPTION", f"{type(error).__name__}: {error}"
    return {
        "autoCommit": True,
        "consumeResult": result,
        "order": is_orderly,
        "remark": remark,
        "spentTimeMills": monotonic_ms() - started_ms,
    }
