"""The dead-letter workbench: groups with letters, their letters, replays, exports."""

from __future__ import annotations

import base64
import csv
import io
import secrets
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Literal

import msgspec
from starlette.responses import Response

from contrail.client.admin import Admin
from contrail.client.dead_letters import origin_topic, reason_of
from contrail.client.message import ReceivedMessage
from contrail.console.api.changes import CHANGE_PROBLEMS, PlanTold, planned
from contrail.console.api.lists import Missing, known, missing_of
from contrail.console.bodies import MessageTold, body_bytes, told
from contrail.console.calls import Call, Parts
from contrail.console.contract import Route
from contrail.console.problems import Problem
from contrail.console.services.replays import LETTERS_MAX, RATE_MAX, ReplayPlan, ReplayTold
from contrail.console.state.roles import Role
from contrail.errors import NotOnCluster
from contrail.insight.changes.planned import Change, Hands, Outcome, Planned, command
from contrail.insight.dead_letters import (
    Wanted,
    ids_of,
    letter_origin_id,
    letters_of,
    replay_plan,
    retries_max_of,
)
from contrail.model.topic import DLQ_PREFIX, check_not_system_topic

_RUN_ID_BYTES = 9
_SHOWN_MAX = 1_000
# A spreadsheet takes a cell that begins so for a formula.
_FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


class GroupLetters(msgspec.Struct):
    """A group with dead letters; ``count`` is None where a broker does not tell it."""

    group: str
    topic: str
    count: int | None


class GroupsPage(msgspec.Struct):
    """Groups with dead letters, from the sample."""

    sampled_ms: int
    partial: list[Missing]
    rows: list[GroupLetters]


class LettersQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Only letters of this tag, key, reason or time; times are in ms."""

    tag: Annotated[str, msgspec.Meta(max_length=255)] = ""
    key: Annotated[str, msgspec.Meta(max_length=255)] = ""
    reason: Literal["", "exhausted", "given-up"] = ""
    since_ms: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)] | None = None
    until_ms: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=_SHOWN_MAX)] = 200


class ExportQuery(LettersQuery, forbid_unknown_fields=True):
    """The same letters as a file."""

    format: Literal["csv", "json"] = "json"


class LetterTold(msgspec.Struct):
    """A dead letter: where it came from and why it was given up."""

    message: MessageTold
    origin_topic: str | None
    origin_message_id: str
    reason: str


class LettersPage(msgspec.Struct):
    """Dead letters of a group, the newest first; ``is_cut`` when there are more."""

    group: str
    is_cut: bool
    rows: list[LetterTold]


class ReplayBody(msgspec.Struct, forbid_unknown_fields=True):
    """Letters by their dead letter's id, and new bodies for some of them."""

    message_ids: Annotated[list[str], msgspec.Meta(min_length=1, max_length=LETTERS_MAX)]
    rate: Annotated[float, msgspec.Meta(gt=0, le=RATE_MAX)] = 50.0
    to_topic: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None
    edits: dict[str, str] = {}


class ReplayPage(msgspec.Struct):
    """Replays, the newest first, without the outcomes of letters."""

    rows: list[ReplayTold]


class ReplaysQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Only those of a group."""

    group: Annotated[str, msgspec.Meta(max_length=255)] = ""


@dataclass(frozen=True)
class Replay(Change):
    """Send dead letters back; the run goes on in the background under ``run_id``."""

    parts: Parts
    account: str
    group: str
    body: ReplayBody
    run_id: str = field(default_factory=lambda: secrets.token_urlsafe(_RUN_ID_BYTES))
    action = "replay dead letters"

    @property
    def target(self) -> str:
        edited = f", {len(self.body.edits)} edited" if self.body.edits else ""
        return f"{self.group}: {len(self.body.message_ids)} letters{edited}, run {self.run_id}"

    async def plan(self, admin: Admin) -> Planned:
        body = self.body
        if body.to_topic is not None:
            check_not_system_topic(body.to_topic)
            await admin.topic_route(body.to_topic)
        unknown = set(body.edits) - set(body.message_ids)
        if unknown:
            raise Problem(HTTPStatus.BAD_REQUEST, "an edited letter is not among those to send")
        letters = await letters_of(admin, self.group, Wanted(message_ids=body.message_ids))
        missing = set(body.message_ids) - {one for letter in letters for one in ids_of(letter)}
        if missing:
            raise NotOnCluster(f"{len(missing)} letters are not there any more: {min(missing)}")
        steps = replay_plan(letters, body.to_topic)
        steps += [f"{len(body.edits)} of them with an edited body"] if body.edits else []
        steps.append(f"at most {body.rate:g} a second; it can be stopped, and goes on later")
        warning = "the letters stay: one that is replayed twice is sent twice"
        words = ["dlq", "replay", self.group, "--rate", f"{body.rate:g}"]
        words += [] if body.to_topic is None else ["--to-topic", body.to_topic]
        words += [word for one in body.message_ids[:20] for word in ("--id", one)]
        is_same = not body.edits and len(body.message_ids) <= 20
        title = f"{len(letters)} dead letters of group {self.group} are sent back"
        return Planned(title, steps, [warning], command(words) if is_same else None)

    async def run(self, hands: Hands) -> list[Outcome]:
        body = self.body
        edits = {
            one: base64.b64encode(body_bytes(text, None) or b"").decode()
            for one, text in body.edits.items()
        }
        self.parts.replays.start(
            ReplayPlan(
                self.run_id,
                self.group,
                self.account,
                self.parts.clock.now_ms(),
                list(dict.fromkeys(body.message_ids)),
                body.rate,
                body.to_topic,
                edits,
            )
        )
        return []


async def groups(call: Call) -> GroupsPage:
    sample = known(call.parts.sampler.sample)
    rows = [
        GroupLetters(one.topic.removeprefix(DLQ_PREFIX), one.topic, one.messages)
        for one in sample.topics
        if one.kind == "dlq" and one.messages != 0
    ]
    return GroupsPage(sample.sampled_ms, missing_of(sample), rows)


async def letters(call: Call) -> LettersPage:
    rows, is_cut = await _letters(call, call.query)
    return LettersPage(call.path["group"], is_cut, rows)


async def _letters(call: Call, query: LettersQuery) -> tuple[list[LetterTold], bool]:
    admin, group = call.parts.admin, call.path["group"]
    wanted = Wanted(
        (query.tag,) if query.tag else (),
        (query.key,) if query.key else (),
        (),
        query.since_ms,
        query.until_ms,
    )
    found = await letters_of(admin, group, wanted, count_max=LETTERS_MAX)
    retries_max = await retries_max_of(admin, group)
    found.sort(key=lambda one: -one.store_timestamp_ms)
    told_of = [_letter(call, one, retries_max) for one in found]
    fitting = [one for one in told_of if query.reason in ("", one.reason)]
    return fitting[: query.limit], len(fitting) > query.limit


def _letter(call: Call, one: ReceivedMessage, retries_max: int) -> LetterTold:
    return LetterTold(
        told(call, one),
        origin_topic(one.properties),
        letter_origin_id(one),
        reason_of(one.properties, one.reconsume_times, retries_max),
    )


async def export(call: Call) -> Response:
    rows, _ = await _letters(call, call.query)
    call.note(
        call.known_caller.account, "export dead letters", call.path["group"], f"{len(rows)} letters"
    )
    if call.query.format == "csv":
        data, kind = _csv(rows).encode("utf-8", "replace"), "text/csv; charset=utf-8"
    else:
        data, kind = msgspec.json.encode(rows), "application/json"
    headers = {"content-disposition": f'attachment; filename="dead-letters.{call.query.format}"'}
    return Response(data, headers=headers, media_type=kind)


def _csv(rows: list[LetterTold]) -> str:
    out = io.StringIO()
    lines = csv.writer(out)
    lines.writerow(["given_up_ms", "origin_topic", "reason", "tries", "id", "keys", "tags", "body"])
    for row in rows:
        one = row.message
        texts = (row.origin_topic or "", row.reason, str(one.reconsume_times), one.message_id)
        more = (" ".join(one.keys), one.tags or "", one.body.text or one.body.base64 or "")
        lines.writerow([str(one.store_timestamp_ms), *map(_cell, (*texts, *more))])
    return out.getvalue()


def _cell(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA_SIGNS) else text


async def plan_replay(call: Call) -> PlanTold:
    account = call.known_caller.account
    return await planned(call, Replay(call.parts, account, call.path["group"], call.body))


async def replays(call: Call) -> ReplayPage:
    return ReplayPage(call.parts.replays.every(call.query.group or None))


async def replay(call: Call) -> ReplayTold:
    return call.parts.replays.told(call.path["run_id"])


async def stop(call: Call) -> ReplayTold:
    run_id = call.path["run_id"]
    call.parts.replays.told(run_id)
    call.note(call.known_caller.account, "stop replay", run_id, "done")
    call.parts.replays.halt(run_id)
    return call.parts.replays.told(run_id)


async def resume(call: Call) -> ReplayTold:
    run_id = call.path["run_id"]
    call.parts.replays.told(run_id)
    call.note(call.known_caller.account, "resume replay", run_id, "begun")
    call.parts.replays.resume(run_id)
    return call.parts.replays.told(run_id)


_PROBLEMS = (
    HTTPStatus.NOT_FOUND,
    HTTPStatus.CONFLICT,
    HTTPStatus.SERVICE_UNAVAILABLE,
)

ROUTES = (
    Route(
        method="GET",
        path="/dlq",
        name="dead_letter_groups",
        summary="Groups with dead letters, from the sample",
        handle=groups,
        answer=GroupsPage,
        role=Role.VIEWER,
        problems=(HTTPStatus.SERVICE_UNAVAILABLE,),
    ),
    Route(
        method="GET",
        path="/dlq/{group}",
        name="dead_letters",
        summary="Dead letters of a group, with origin and reason",
        handle=letters,
        query=LettersQuery,
        answer=LettersPage,
        role=Role.VIEWER,
        problems=_PROBLEMS,
    ),
    Route(
        method="GET",
        path="/dlq/{group}/export",
        name="export_dead_letters",
        summary="Dead letters of a group as a file",
        handle=export,
        query=ExportQuery,
        answer=list[LetterTold],
        role=Role.READER,
        problems=_PROBLEMS,
    ),
    Route(
        method="POST",
        path="/dlq/{group}/replay:plan",
        name="plan_replay",
        summary="Send dead letters back, some with another body",
        handle=plan_replay,
        body=ReplayBody,
        answer=PlanTold,
        role=Role.OPERATOR,
        problems=CHANGE_PROBLEMS,
    ),
    Route(
        method="GET",
        path="/replays",
        name="replays",
        summary="Replays, the newest first",
        handle=replays,
        query=ReplaysQuery,
        answer=ReplayPage,
        role=Role.VIEWER,
    ),
    Route(
        method="GET",
        path="/replays/{run_id}",
        name="replay",
        summary="One replay with the outcome of each letter",
        handle=replay,
        answer=ReplayTold,
        role=Role.VIEWER,
        problems=(HTTPStatus.NOT_FOUND,),
    ),
    Route(
        method="POST",
        path="/replays/{run_id}:stop",
        name="stop_replay",
        summary="Stop a replay; it can go on later",
        handle=stop,
        answer=ReplayTold,
        role=Role.OPERATOR,
        problems=(HTTPStatus.NOT_FOUND,),
    ),
    Route(
        method="POST",
        path="/replays/{run_id}:resume",
        name="resume_replay",
        summary="Go on with the letters that have no outcome",
        handle=resume,
        answer=ReplayTold,
        role=Role.OPERATOR,
        problems=(HTTPStatus.NOT_FOUND,),
    ),
)
