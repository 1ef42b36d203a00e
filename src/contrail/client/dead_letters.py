"""Dead letters: where they came from, why they were given up, and whether they can be read.

``contrail dlq`` and the jobs ``replay`` and ``report`` use these functions, so that they agree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from contrail.errors import ClientError
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.properties import (
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    MAX_RECONSUME_TIMES,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
)

if TYPE_CHECKING:
    from contrail.client.blocking.admin import Admin

# Why a message became a dead letter, as far as its properties show.
EXHAUSTED = "exhausted"
GIVEN_UP = "given-up"
REASONS = (EXHAUSTED, GIVEN_UP)
# The properties that name the topic a dead letter came from; the first present one counts.
ORIGIN_PROPERTIES = (DLQ_ORIGIN_TOPIC, RETRY_TOPIC)
# A retry limit that a consumer requested; it stands in the message.
OWN_LIMIT = "[0-9]{1,10}"


def origin_topic(properties: Mapping[str, str]) -> str | None:
    """The topic from which a dead letter came, as the broker or a proxy noted it."""
    return next((found for name in ORIGIN_PROPERTIES if (found := properties.get(name))), None)


def origin_id(properties: Mapping[str, str], message_id: str) -> str:
    """The id of the message that became the dead letter ``message_id``."""
    noted = properties.get(DLQ_ORIGIN_MESSAGE_ID) or properties.get(ORIGIN_MESSAGE_ID)
    return noted or message_id


def reason_of(properties: Mapping[str, str], reconsume_times: int, retries_max: int) -> str:
    """``EXHAUSTED`` or ``GIVEN_UP``: the copy in the dead letters counts one retry too many."""
    own = properties.get(MAX_RECONSUME_TIMES, "")
    limit = int(own) if re.fullmatch(OWN_LIMIT, own) else retries_max
    return EXHAUSTED if reconsume_times > limit else GIVEN_UP


def retries_max_of(admin: Admin, group: str) -> int:
    """How often a group's messages are retried; the default for a deleted group."""
    try:
        return retries_max_in(admin.group_config(group), group)
    except ClientError:
        return retries_max_in({}, group)


def retries_max_in(configs: Mapping[str, SubscriptionGroupConfig], group: str) -> int:
    """The most retries by a group's settings on its brokers; the default without settings."""
    default = SubscriptionGroupConfig(group).retry_count_max
    return max((one.retry_count_max for one in configs.values()), default=default)


def why_closed(admin: Admin, group: str) -> str | None:
    """Why a group's dead letters cannot be read, and the command that opens them; else None."""
    return closed_text(group, admin.closed_dead_letters(group))


def closed_text(group: str, closed: Sequence[str]) -> str | None:
    """Why dead letters that are closed on these brokers cannot be read; None if on none."""
    if not closed:
        return None
    return (
        f"the dead letters of group {group!r} are closed on {', '.join(closed)}: new ones are "
        "stored, but nobody may read them (contrailDeadLetterPerm, or the topic's perm); open "
        f"them with `contrail dlq open {group}`"
    )
