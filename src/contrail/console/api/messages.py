"""Messages: searched from the newest backwards, found by id or key, with their story."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated

import msgspec

from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.client.subscriptions import Sql92
from contrail.console.bodies import MessageTold, told
from contrail.console.calls import Call
from contrail.console.contract import Route
from contrail.console.problems import Problem
from contrail.console.state.json_filter import ConditionInvalid, parse_condition
from contrail.console.state.roles import Role
from contrail.errors import NotOnCluster
from contrail.insight.browsing import newest
from contrail.insight.damage import DamageNoted
from contrail.insight.messages import ids_by_key, story_of
from contrail.model.topic import TRACE_TOPIC

SCAN_MAX = 2_000
_QUEUE_PATTERN = r"^[^:]{1,255}:[0-9]{1,5}$"
_STORIES_KEY_MAX = 64
# A queue's name and offset each, for as many queues as a topic may sensibly have.
# Each character takes three in an address, which has up to 64 KiB.
_PLACE_CHARACTERS_MAX = 16_000


class BrowseQuery(msgspec.Struct, forbid_unknown_fields=True):
    """``place`` is the one of the answer before; ``where`` is ``$.total > 100``, on JSON bodies."""

    queue: Annotated[str, msgspec.Meta(pattern=_QUEUE_PATTERN)] | None = None
    until_ms: Annotated[int, msgspec.Meta(ge=0, le=(1 << 53))] | None = None
    place: (
        Annotated[str, msgspec.Meta(max_length=_PLACE_CHARACTERS_MAX, pattern=r"^[ -~]*$")] | None
    ) = None
    tags: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    key: Annotated[str, msgspec.Meta(max_length=255)] = ""
    text: Annotated[str, msgspec.Meta(max_length=255)] = ""
    where: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    sql: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50


class MessagePage(msgspec.Struct):
    """Messages, the newest first. ``place`` goes on; None when the oldest was reached."""

    rows: list[MessageTold]
    place: str | None
    scanned: int
    total: int
    until_ms: int | None
    gaps: list[str]


class FindQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The key of the messages."""

    key: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


class Step(msgspec.Struct):
    """One step of a message's way."""

    kind: str
    timestamp_ms: int | None
    source: str
    text: str
    group: str | None
    broker_name: str | None
    queue_id: int | None
    queue_offset: int | None
    attempt: int | None
    success: bool | None
    cost_ms: int | None


class StoryTold(msgspec.Struct):
    """The way of a message; ``notes`` tell what could not be listed."""

    message_id: str
    topic: str | None
    tags: str | None
    keys: list[str]
    steps: list[Step]
    notes: list[str]


class MessageWhole(msgspec.Struct):
    """A message, and other messages of the same id."""

    message: MessageTold
    others: list[MessageTold]


async def browse(call: Call) -> MessagePage:
    query: BrowseQuery = call.query
    admin, topic = call.parts.admin, call.path["topic"]
    may_read = call.known_caller.role >= Role.READER
    if (query.text or query.where or query.sql) and not may_read:
        # The answer to a question about a body tells of the body.
        raise Problem(HTTPStatus.FORBIDDEN, "a filter of bodies needs a reader", Role.READER.word)
    queues = await admin.queues(topic)
    if query.queue is not None:
        broker, _, number = query.queue.rpartition(":")
        queues = [one for one in queues if (one.broker_name, one.queue_id) == (broker, int(number))]
        if not queues:
            raise NotOnCluster(f"topic {topic!r} has no queue {query.queue}")
    found = await newest(
        admin,
        queues,
        before=None if query.place is None else _decoded(topic, query.place),
        until_ms=query.until_ms,
        fits=_fits(query, call),
        expression=Sql92(query.sql) if query.sql else None,
        count_max=query.limit,
        scan_max=SCAN_MAX,
    )
    reached = found.messages[-1].store_timestamp_ms if found.messages else None
    return MessagePage(
        [told(call, one, preview=True) for one in found.messages],
        None if found.place is None else _encoded(found.place),
        found.scanned,
        found.total,
        reached,
        found.gaps[:10],
    )


def _fits(query: BrowseQuery, call: Call) -> Callable[[ReceivedMessage], bool]:
    tags = {one.strip() for one in query.tags.split("||")} - {"", "*"}
    masks = call.parts.config.masks if call.known_caller.role < Role.ADMIN else ()
    if masks and (query.text or query.where):
        raise Problem(HTTPStatus.FORBIDDEN, "bodies are masked here: filters of bodies are off")
    try:
        where = parse_condition(query.where) if query.where else None
    except ConditionInvalid as error:
        raise Problem(HTTPStatus.BAD_REQUEST, f"where: {error}") from error
    text = query.text.encode("utf-8", "replace")

    def fits(one: ReceivedMessage) -> bool:
        return (
            (not tags or one.tags in tags)
            and (not query.key or query.key in one.keys)
            and (not text or text in bytes(one.body))
            and (where is None or where(bytes(one.body)))
        )

    return fits


def _encoded(place: dict[MessageQueue, int]) -> str:
    return ",".join(
        f"{queue.broker_name}:{queue.queue_id}={before}" for queue, before in sorted(place.items())
    )


def _decoded(topic: str, text: str) -> dict[MessageQueue, int]:
    found = {}
    try:
        for piece in filter(None, text.split(",")):
            name, _, before = piece.rpartition("=")
            broker, _, number = name.rpartition(":")
            if not (before.isascii() and before.isdecimal() and len(before) < 20):
                raise ValueError(piece)
            found[MessageQueue(topic, broker, int(number))] = int(before)
    except ValueError as error:
        raise Problem(HTTPStatus.BAD_REQUEST, f"place: {error} is no place") from error
    return found


async def message(call: Call) -> MessageWhole:
    topic, message_id = call.path["topic"], call.path["message_id"]
    admin = call.parts.admin
    damage = DamageNoted()
    found = [
        one
        for one in [await admin.message(topic, message_id)]
        if one is not None and one.topic == topic
    ]
    found += [
        one
        for one in await damage.sound_of(admin.messages_by_unique_key(topic, message_id))
        if one.queue_offset
        not in {known.queue_offset for known in found if known.queue == one.queue}
    ]
    if not found:
        raise NotOnCluster(f"topic {topic!r} has no message {message_id!r}")
    return MessageWhole(told(call, found[0]), [told(call, one, preview=True) for one in found[1:]])


async def find(call: Call) -> MessagePage:
    damage = DamageNoted()
    asked = call.parts.admin.messages_by_key(call.path["topic"], call.query.key)
    found = await damage.sound_of(asked)
    rows = [told(call, one, preview=True) for one in reversed(found)]
    return MessagePage(rows, None, len(rows), len(rows), None, damage.remarks)


async def story(call: Call) -> StoryTold:
    damage = DamageNoted()
    notes: list[str] = []
    found = await story_of(
        call.parts.admin,
        call.path["message_id"],
        call.path["topic"],
        TRACE_TOPIC,
        damage,
        notes.append,
    )
    return msgspec.convert({**found.fields(), "notes": [*notes, *damage.remarks]}, StoryTold)


class Ids(msgspec.Struct):
    """Ids of messages, the newest last."""

    ids: list[str]


async def traced(call: Call) -> Ids:
    found = await ids_by_key(call.parts.admin, call.query.key, None, TRACE_TOPIC, DamageNoted())
    return Ids(found[-_STORIES_KEY_MAX:])


_PROBLEMS = (
    HTTPStatus.NOT_FOUND,
    HTTPStatus.UNPROCESSABLE_ENTITY,
    HTTPStatus.SERVICE_UNAVAILABLE,
)

ROUTES = (
    Route(
        method="GET",
        path="/topics/{topic}/messages",
        name="messages",
        summary="Messages of a topic, the newest first, as far as one search reaches",
        handle=browse,
        query=BrowseQuery,
        answer=MessagePage,
        role=Role.VIEWER,
        problems=_PROBLEMS,
    ),
    Route(
        method="GET",
        path="/topics/{topic}/messages:find",
        name="find_messages",
        summary="Messages of a topic with a key, by the brokers' index",
        handle=find,
        query=FindQuery,
        answer=MessagePage,
        role=Role.VIEWER,
        problems=_PROBLEMS,
    ),
    Route(
        method="GET",
        path="/topics/{topic}/messages/{message_id}",
        name="message",
        summary="One message, by an id of either kind",
        handle=message,
        answer=MessageWhole,
        role=Role.VIEWER,
        problems=_PROBLEMS,
    ),
    Route(
        method="GET",
        path="/topics/{topic}/messages/{message_id}/story",
        name="story",
        summary="The way of a message: sent, stored, delivered, retried, given up",
        handle=story,
        answer=StoryTold,
        role=Role.VIEWER,
        problems=_PROBLEMS,
    ),
    Route(
        method="GET",
        path="/traces",
        name="traces",
        summary="Ids of the traced messages with a key, in any topic",
        handle=traced,
        query=FindQuery,
        answer=Ids,
        role=Role.VIEWER,
        problems=_PROBLEMS,
    ),
)
