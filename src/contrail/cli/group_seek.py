"""``contrail group seek`` and ``clone``: a group's new offsets, planned queue by queue."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, NamedTuple

import typer

from contrail.cli.completion import group_names, topic_names
from contrail.cli.exits import CommandFailed, NotFound
from contrail.cli.group_facts import consumed_topics, member_words, require_group
from contrail.cli.output import AsJson, DryRun, Yes, agree, print_json, print_rows
from contrail.cli.target import ContextName, NameServers, open_admin
from contrail.cli.times import parse_time
from contrail.client.blocking.admin import Admin
from contrail.errors import ClientError, ConfigError, OptionInvalid, SomeFailed
from contrail.model.group import SubscriptionGroupConfig
from contrail.protocol.json_style import MessageQueue

Topic = Annotated[
    str | None,
    typer.Option(
        "--topic",
        metavar="TOPIC",
        autocompletion=topic_names,
        help="Only this topic; else all it consumes.",
    ),
]


class Where(Enum):
    """The kinds of targets."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIME = "time"
    QUEUE_OFFSET = "offset"


class Goal(NamedTuple):
    """The target of a seek; ``value`` is a time in ms or a queue offset."""

    where: Where
    value: int = 0


class Move(NamedTuple):
    """A group on one queue, before and after; None for a queue it has no offset on."""

    queue: MessageQueue
    before: int | None
    after: int | None

    def line(self) -> str:
        before = "none" if self.before is None else f"{self.before:,}"
        after = "none" if self.after is None else f"{self.after:,}"
        queue = self.queue
        return f"  {queue.topic} {queue.broker_name} queue {queue.queue_id}: {before} -> {after}"

    def name(self) -> str:
        return f"{self.queue.topic} {self.queue.broker_name}:{self.queue.queue_id}"

    def row(self) -> dict[str, Any]:
        return {
            "topic": self.queue.topic,
            "broker": self.queue.broker_name,
            "queue_id": self.queue.queue_id,
            "consumer_offset_before": self.before,
            "consumer_offset": self.after,
        }


def seek(
    group: Annotated[
        str,
        typer.Argument(
            metavar="GROUP", autocompletion=group_names, help="The consumer group's name."
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="PLACE", help="earliest, latest, a time as 2026-11-16T10:00, an offset."
        ),
    ],
    namesrv: NameServers = None,
    ctx: ContextName = None,
    topic: Topic = None,
    queue: Annotated[
        str | None,
        typer.Option("--queue", metavar="BROKER:ID", help="Only this queue, such as broker-a:3."),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Move a group to another place, with its members on line or not."""
    goal = parse_goal(to)
    if topic is None and (queue is not None or goal.where is Where.QUEUE_OFFSET):
        raise ConfigError("--queue and an offset need --topic: say whose queue is meant")
    with open_admin(namesrv, ctx) as client:
        require_group(client, group)
        topics = consumed_topics(client, group, topic)
        chosen = _chosen(client, topics, queue, goal)
        moves = [
            Move(one, client.committed(group, one), _place(client, one, goal)) for one in chosen
        ]
        members = client.group_connections(group, allow_partial=True)
        plan = [f"group {group} ({member_words(members)}) goes to {to}:"]
        agree(
            [*plan, *(move.line() for move in moves)],
            yes=yes,
            dry_run=dry_run,
            as_json=as_json,
            facts={"group": group, "to": to, "queues": [move.row() for move in moves]},
        )
        journey = _Journey(client, group, goal)
        journey.go(topics, moves, by_queue=queue is not None)
    _tell(group, moves, journey, as_json=as_json)


def parse_goal(text: str) -> Goal:
    """``earliest``, ``latest``, digits for an offset, else a time, with or without ``@``.

    Raises:
        OptionInvalid: the text is none of them.
    """
    if text in (Where.EARLIEST.value, Where.LATEST.value):
        return Goal(Where(text))
    if text.isascii() and text.isdecimal():
        return Goal(Where.QUEUE_OFFSET, int(text))
    moment_ms = parse_time("--to", text.removeprefix("@"))
    if moment_ms is None:
        raise OptionInvalid("--to is empty: write earliest, latest, a time or an offset")
    return Goal(Where.TIME, moment_ms)


def _chosen(client: Admin, topics: list[str], queue: str | None, goal: Goal) -> list[MessageQueue]:
    queues = [one for topic in topics for one in client.queues(topic)]
    if queue is None:
        if goal.where is Where.QUEUE_OFFSET and len(queues) > 1:
            raise ConfigError(
                f"an offset is a place in one queue, and topic {topics[0]!r} has {len(queues)}: "
                f"name it by --queue {queues[0].broker_name}:{queues[0].queue_id}"
            )
        return queues
    broker, _, number = queue.rpartition(":")
    if not broker or not number.isdecimal():
        raise OptionInvalid(f"--queue {queue!r} is no queue: write it as broker-a:3")
    wanted = MessageQueue(topics[0], broker, int(number))
    if wanted not in queues:
        names = sorted({one.broker_name for one in queues})
        raise NotFound(
            f"topic {topics[0]!r} has no queue {queue}: its brokers are {', '.join(names)}; "
            f"`contrail topic route {topics[0]}` shows how many queues they have"
        )
    return [wanted]


def _place(client: Admin, queue: MessageQueue, goal: Goal) -> int:
    if goal.where is Where.EARLIEST:
        return client.queue_offset_min(queue)
    if goal.where is Where.LATEST:
        return client.queue_offset_max(queue)
    if goal.where is Where.TIME:
        return max(0, client.search_offset(queue, goal.value))
    return goal.value


class _Journey:
    """A seek under way: the offsets that brokers confirmed, and the error that stopped it."""

    def __init__(self, client: Admin, group: str, goal: Goal) -> None:
        self._client = client
        self._group = group
        self._goal = goal
        self.went: dict[MessageQueue, int] = {}
        self.problem: ClientError | None = None

    def go(self, topics: list[str], moves: list[Move], *, by_queue: bool) -> None:
        """Move whole topics at once if no queue is given: not every broker can move a single queue.

        Raises:
            ClientError: it was refused before a queue was moved.
        """
        try:
            if not by_queue and self._goal.where is not Where.QUEUE_OFFSET:
                for topic in topics:
                    self.went |= self._go_on_topic(topic)
            # Brokers that leave offsets to clients skip queues that are not writable.
            for move in moves:
                if move.queue not in self.went:
                    self._go_on_queue(move)
        except ClientError as error:
            if isinstance(error, SomeFailed) and isinstance(error.partial, dict):
                self.went |= error.partial
            if not self.went:
                raise
            self.problem = error

    def _go_on_topic(self, topic: str) -> dict[MessageQueue, int]:
        if self._goal.where is Where.EARLIEST:
            return self._client.reset_to_begin(self._group, topic)
        if self._goal.where is Where.LATEST:
            return self._client.skip_to_end(self._group, topic)
        return self._client.reset_to_time(self._group, topic, self._goal.value)

    def _go_on_queue(self, move: Move) -> None:
        self.went |= self._client.reset_to_offset(self._group, move.queue, move.after or 0)


def _tell(group: str, moves: list[Move], journey: _Journey, *, as_json: bool) -> None:
    """Raises ``CommandFailed`` if the group is not at its target on every queue."""
    went = journey.went
    told = [move._replace(after=went.get(move.queue, move.before)) for move in moves]
    if as_json:
        rows = [{**move.row(), "moved": move.queue in went} for move in told]
        print_json({"group": group, "queues": rows})
    else:
        _print_moves([move for move in told if move.queue in went])
    stayed = [move.name() for move in told if move.queue not in went]
    if stayed:
        reason = journey.problem or "their brokers did not say that they did it"
        raise CommandFailed(
            f"group {group!r} was not moved on {len(stayed)} of {len(moves)} queues "
            f"({', '.join(stayed)}): {reason}"
        ) from journey.problem


def clone(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", autocompletion=group_names, help="The group to copy from."
        ),
    ],
    destination: Annotated[
        str,
        typer.Argument(
            metavar="DESTINATION",
            autocompletion=group_names,
            help="The group that shall be where it is.",
        ),
    ],
    namesrv: NameServers = None,
    ctx: ContextName = None,
    topic: Topic = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Copy a group's offsets to another; one that does not exist gets the same settings."""
    if source == destination:
        raise ConfigError(f"source and destination are both {source!r}: name another group")
    with open_admin(namesrv, ctx) as client:
        require_group(client, source, may_be_made=False)
        topics = consumed_topics(client, source, topic)
        members = client.group_connections(destination)
        if members.is_online:
            raise CommandFailed(
                f"group {destination!r} has {member_words(members)}, which would overwrite the "
                "offsets: stop them first"
            )
        moves = _copies(client, source, destination, topics)
        missing = _missing(client, source, destination)
        plan = [f"group {destination} gets the offsets of {source}:"]
        plan += [move.line() for move in moves]
        plan += [f"  {destination} is created on {name}" for name in missing]
        agree(
            plan,
            yes=yes,
            dry_run=dry_run,
            as_json=as_json,
            facts={
                "source": source,
                "destination": destination,
                "queues": [move.row() for move in moves],
                "created_on": list(missing),
            },
        )
        for name, config in missing.items():
            client.create_group(destination, broker=name, **_fields(config))
        for one in topics:
            client.clone_offsets(source, destination, one)
    if as_json:
        rows = [move.row() for move in moves]
        print_json({"source": source, "destination": destination, "queues": rows})
    else:
        _print_moves(moves)


def _copies(client: Admin, source: str, destination: str, topics: list[str]) -> list[Move]:
    """Only queues on which the source has an offset are copied."""
    found = []
    for topic in topics:
        before = client.committed_offsets(destination, topic)
        for queue, place in client.committed_offsets(source, topic).items():
            if place is not None:
                found.append(Move(queue, before.get(queue), place))
    return found


def _missing(client: Admin, source: str, destination: str) -> dict[str, SubscriptionGroupConfig]:
    return {
        broker: table[source]
        for broker, table in client.group_configs().items()
        if source in table and destination not in table
    }


def _fields(config: SubscriptionGroupConfig) -> dict[str, Any]:
    names = [name for name in SubscriptionGroupConfig.__slots__ if name != "group"]
    return {name: getattr(config, name) for name in names}


def _print_moves(moves: list[Move]) -> None:
    shown = [
        {
            "topic": move.queue.topic,
            "broker": move.queue.broker_name,
            "queue": move.queue.queue_id,
            "from": move.before,
            "to": move.after,
        }
        for move in moves
    ]
    print_rows(shown, ["topic", "broker", "queue", "from", "to"], empty="there is nothing to move")
