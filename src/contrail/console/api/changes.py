"""Changes: a plan for each kind by its own path, and one path that runs a plan."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Literal

import msgspec

from contrail.console.bodies import body_bytes
from contrail.console.calls import Call
from contrail.console.contract import Route
from contrail.console.problems import Problem
from contrail.console.state.roles import Role
from contrail.insight.changes.groups import Clone, DeleteGroup, Seek, SetGroup, Skip
from contrail.insight.changes.messages import Resend, RunOnMember, SendMessage
from contrail.insight.changes.operations import Drain, Recall, SetBroker, Settle, Transfer
from contrail.insight.changes.planned import Change, Outcome
from contrail.insight.changes.topics import CreateTopic, DeleteTopic, GrowTopic, ShrinkTopic

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Queues = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
Text = Annotated[str, msgspec.Meta(max_length=255)]
Long = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_ID_BYTES = 12


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """A change without details."""


class SeekBody(msgspec.Struct, forbid_unknown_fields=True):
    """``value`` is a time in ms or an offset; as a text where it may pass 2^53."""

    to: Literal["earliest", "latest", "time", "offset"]
    value: Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,19}$")] = "0"
    topic: Name | None = None
    broker: Name | None = None
    queue_id: Annotated[int, msgspec.Meta(ge=0, le=65_535)] | None = None


class SkipBody(msgspec.Struct, forbid_unknown_fields=True):
    """The queue whose next message is skipped."""

    topic: Name
    broker: Name
    queue_id: Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class CloneBody(msgspec.Struct, forbid_unknown_fields=True):
    """The group that gets the offsets."""

    destination: Name
    topic: Name | None = None


class GroupBody(msgspec.Struct, forbid_unknown_fields=True):
    """Settings to change; the others stay."""

    consume_enable: bool | None = None
    consume_broadcast_enable: bool | None = None
    consume_message_orderly: bool | None = None
    retry_count_max: Annotated[int, msgspec.Meta(ge=-1, le=1_000_000)] | None = None


class DeleteGroupBody(msgspec.Struct, forbid_unknown_fields=True):
    """Whether its retry and dead-letter topics go too."""

    topics: bool = False


class CreateTopicBody(msgspec.Struct, forbid_unknown_fields=True):
    """A new topic, alike on every broker."""

    queues: Queues = 8
    order: bool = False
    kind: Literal["NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"] | None = None


class QueuesBody(msgspec.Struct, forbid_unknown_fields=True):
    """How many queues each broker is to have."""

    queues: Queues


class SendBody(msgspec.Struct, forbid_unknown_fields=True):
    """A message; its body as text or as base64."""

    body: str | None = None
    body_base64: str | None = None
    tags: Text | None = None
    keys: list[Text] = []
    properties: dict[str, str] = {}


class ResendBody(msgspec.Struct, forbid_unknown_fields=True):
    """Another body, another topic; without them the copy is as the message."""

    body: str | None = None
    body_base64: str | None = None
    to_topic: Name | None = None


class RunBody(msgspec.Struct, forbid_unknown_fields=True):
    """The member that is to handle the message."""

    group: Name
    client_id: Name


class SettleBody(msgspec.Struct, forbid_unknown_fields=True):
    """The decision."""

    fate: Literal["commit", "rollback"]


class RecallBody(msgspec.Struct, forbid_unknown_fields=True):
    """The message's recall handle."""

    handle: Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]


class SettingsBody(msgspec.Struct, forbid_unknown_fields=True):
    """Settings by RocketMQ's names."""

    settings: Annotated[dict[str, str], msgspec.Meta(min_length=1, max_length=50)]


class DrainBody(msgspec.Struct, forbid_unknown_fields=True):
    """Whether producers may choose the broker."""

    takes_messages: bool


class TransferBody(msgspec.Struct, forbid_unknown_fields=True):
    """The member that is to lead, such as n1; any that has the whole log without it."""

    to: Text | None = None


class PlanTold(msgspec.Struct):
    """A plan in words; it runs once, before ``expires_ms``, if the facts are still the same."""

    plan_id: str
    title: str
    steps: list[str]
    warnings: list[str]
    command: str | None
    expires_ms: int


class Ran(msgspec.Struct):
    """Outcomes; a replay goes on under ``run_id``."""

    outcomes: list[Outcome]
    run_id: str | None = None


async def planned(call: Call, change: Change) -> PlanTold:
    """Make a plan of a change, and keep it."""
    parts = call.parts
    told = await change.plan(parts.hands.admin)
    plan_id = secrets.token_urlsafe(_ID_BYTES)
    account = call.known_caller.account
    now_ms = parts.clock.now_ms()
    kept = parts.plans.add(plan_id, account, change, told.steps, now_ms)
    return PlanTold(plan_id, told.title, told.steps, told.warnings, told.command, kept.expires_ms)


async def run(call: Call) -> Ran:
    """Run a plan, if a new plan would say the same."""
    parts, account = call.parts, call.known_caller.account
    kept = parts.plans.take(call.path["plan_id"], account, parts.clock.now_ms())
    if kept is None:
        raise Problem(
            HTTPStatus.NOT_FOUND, "there is no such plan: it was run, or is too old; plan anew"
        )
    change: Change = kept.change
    again = await change.plan(parts.hands.admin)
    if list(again.steps) != list(kept.steps):
        call.note(account, change.action, change.target, "refused: the facts moved")
        raise Problem(HTTPStatus.CONFLICT, "the facts have moved since the plan: plan anew")
    # In the log before it is done: a change without a line must not be.
    call.note(account, change.action, change.target, "begun")
    outcomes = await change.run(parts.hands)
    failed = [one for one in outcomes if one.outcome != "done"]
    told = f"{len(outcomes) - len(failed)} done, {len(failed)} failed"
    more = f": {failed[0].target}: {failed[0].detail}" if failed else ""
    call.note(account, change.action, change.target, told + more)
    return Ran(outcomes, getattr(change, "run_id", None))


@dataclass(frozen=True, slots=True)
class _Kind:
    path: str
    name: str
    summary: str
    body: type[msgspec.Struct]
    of: Callable[[Call, Any], Change]
    role: Role = Role.OPERATOR

    def route(self) -> Route:
        async def handle(call: Call) -> PlanTold:
            return await planned(call, self.of(call, call.body))

        return Route(
            method="POST",
            path=self.path,
            name=self.name,
            summary=self.summary,
            handle=handle,
            body=self.body,
            answer=PlanTold,
            role=self.role,
            problems=CHANGE_PROBLEMS,
        )


CHANGE_PROBLEMS = (
    HTTPStatus.NOT_FOUND,
    HTTPStatus.CONFLICT,
    HTTPStatus.UNPROCESSABLE_ENTITY,
    HTTPStatus.SERVICE_UNAVAILABLE,
)


def _seek(call: Call, body: SeekBody) -> Change:
    if (body.broker is None) != (body.queue_id is None):
        raise Problem(HTTPStatus.BAD_REQUEST, "broker and queue_id: give both, or none")
    group = call.path["group"]
    return Seek(group, body.to, int(body.value), body.topic, body.broker, body.queue_id)


def _settings(call: Call, body: GroupBody) -> Change:
    given = msgspec.structs.asdict(body)
    known = {name: value for name, value in given.items() if value is not None}
    return SetGroup(call.path["group"], known)


def _send(call: Call, body: SendBody) -> Change:
    data = body_bytes(body.body, body.body_base64) or b""
    return SendMessage(call.path["topic"], data, body.tags, body.keys, body.properties)


def _resend(call: Call, body: ResendBody) -> Change:
    data = body_bytes(body.body, body.body_base64)
    return Resend(call.path["topic"], call.path["message_id"], data, body.to_topic)


def _run_on(call: Call, body: RunBody) -> Change:
    path = call.path
    return RunOnMember(path["topic"], path["message_id"], body.group, body.client_id)


_MESSAGE = "/topics/{topic}/messages/{message_id}"
_KINDS = (
    _Kind("/groups/{group}/seek:plan", "plan_seek", "Move a group", SeekBody, _seek),
    _Kind(
        "/groups/{group}/skip:plan",
        "plan_skip",
        "Skip the message that a group stands at",
        SkipBody,
        lambda call, body: Skip(call.path["group"], body.topic, body.broker, body.queue_id),
    ),
    _Kind(
        "/groups/{group}/clone:plan",
        "plan_clone",
        "Copy a group's offsets to another",
        CloneBody,
        lambda call, body: Clone(call.path["group"], body.destination, body.topic),
    ),
    _Kind(
        "/groups/{group}/settings:plan",
        "plan_group_settings",
        "Create a group, or change its settings",
        GroupBody,
        _settings,
    ),
    _Kind(
        "/groups/{group}/delete:plan",
        "plan_delete_group",
        "Delete a group",
        DeleteGroupBody,
        lambda call, body: DeleteGroup(call.path["group"], body.topics),
        Role.ADMIN,
    ),
    _Kind(
        "/topics/{topic}/create:plan",
        "plan_create_topic",
        "Create a topic",
        CreateTopicBody,
        lambda call, body: CreateTopic(call.path["topic"], body.queues, body.order, body.kind),
    ),
    _Kind(
        "/topics/{topic}/grow:plan",
        "plan_grow_topic",
        "Give a topic more queues",
        QueuesBody,
        lambda call, body: GrowTopic(call.path["topic"], body.queues),
    ),
    _Kind(
        "/topics/{topic}/shrink:plan",
        "plan_shrink_topic",
        "Take queues of a topic away",
        QueuesBody,
        lambda call, body: ShrinkTopic(call.path["topic"], body.queues),
    ),
    _Kind(
        "/topics/{topic}/delete:plan",
        "plan_delete_topic",
        "Delete a topic with its messages",
        Body,
        lambda call, body: DeleteTopic(call.path["topic"]),
        Role.ADMIN,
    ),
    _Kind("/topics/{topic}/send:plan", "plan_send", "Send a message", SendBody, _send),
    _Kind(f"{_MESSAGE}/resend:plan", "plan_resend", "Send a message again", ResendBody, _resend),
    _Kind(f"{_MESSAGE}/run:plan", "plan_run", "Run a message on one member", RunBody, _run_on),
    _Kind(
        "/transactions/{broker}/{transaction_id}/settle:plan",
        "plan_settle",
        "Decide an open transaction",
        SettleBody,
        lambda call, body: Settle(call.path["broker"], call.path["transaction_id"], body.fate),
    ),
    _Kind(
        "/timers/recall:plan",
        "plan_recall",
        "Take a timed message back",
        RecallBody,
        lambda call, body: Recall(body.handle),
    ),
    _Kind(
        "/brokers/{broker}/settings:plan",
        "plan_broker_settings",
        "Change settings of a broker",
        SettingsBody,
        lambda call, body: SetBroker(call.path["broker"], body.settings),
        Role.ADMIN,
    ),
    _Kind(
        "/brokers/{broker}/drain:plan",
        "plan_drain",
        "Send producers away from a broker, or back",
        DrainBody,
        lambda call, body: Drain(call.path["broker"], body.takes_messages),
    ),
    _Kind(
        "/replication/{broker}/transfer:plan",
        "plan_transfer",
        "Hand a failover group's leadership over",
        TransferBody,
        lambda call, body: Transfer(call.path["broker"], body.to),
        Role.ADMIN,
    ),
)

ROUTES = (
    *(one.route() for one in _KINDS),
    Route(
        method="POST",
        path="/plans/{plan_id}:run",
        name="run_plan",
        summary="Run a plan",
        handle=run,
        answer=Ran,
        role=Role.OPERATOR,
        problems=CHANGE_PROBLEMS,
    ),
)
