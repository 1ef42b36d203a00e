"""``contrail topic grow`` and ``shrink``: another number of queues, without losing a message.

Growing makes the new queues readable before producers write to them. Shrinking goes the other way:
the last queues lose their write permission, and stay readable until they are consumed and no
producer with an older route has sent there for a while.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, NamedTuple

import typer

from contrail.cli.completion import topic_names
from contrail.cli.exits import NotFound
from contrail.cli.output import AsJson, DryRun, Yes, agree, complain, print_json
from contrail.cli.target import ContextName, NameServers, open_admin
from contrail.cli.times import parse_duration
from contrail.cli.topic_facts import require_topic
from contrail.cli.waiting import wait_until_at_rest
from contrail.client.blocking.admin import Admin
from contrail.errors import ConfigError
from contrail.model.topic import TopicConfig, check_not_system_topic
from contrail.protocol.json_style import MessageQueue

Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", autocompletion=topic_names, help="The topic's name.")
]
Queues = Annotated[
    int, typer.Option("--queues", min=1, metavar="N", help="How many each broker shall have.")
]
Cluster = Annotated[
    str | None, typer.Option("--cluster", metavar="NAME", help="Only on this cluster's brokers.")
]
Broker = Annotated[
    str | None, typer.Option("--broker", metavar="NAME", help="Only on this broker.")
]
_QUEUES_MAX = 65_535


class Left(NamedTuple):
    """Messages that keep queues from being removed: a group (or no group) has yet to read them."""

    group: str | None
    broker: str
    queue_id: int
    messages: int

    def __str__(self) -> str:
        who = "no group consumes the topic" if self.group is None else f"group {self.group}"
        return f"queue {self.queue_id} on {self.broker}: {self.messages:,} messages left ({who})"


def require_queue_count(queues: int | None) -> None:
    """Refuse more queues than any broker has use for: a typing error, most likely."""
    if queues is not None and queues > _QUEUES_MAX:
        raise ConfigError(f"--queues {queues}: a broker may have {_QUEUES_MAX:,} of a topic")


def grow(
    topic: Topic,
    queues: Queues,
    namesrv: NameServers = None,
    ctx: ContextName = None,
    cluster: Cluster = None,
    broker: Broker = None,
    as_json: AsJson = False,
) -> None:
    """Give a topic more queues: consumers may read them first, then producers write to them."""
    check_not_system_topic(topic)
    require_queue_count(queues)
    with open_admin(namesrv, ctx) as client:
        configs = chosen_configs(client, topic, cluster, broker)
        for name, config in configs.items():
            if queues < max(config.read_queue_count, config.write_queue_count):
                raise ConfigError(
                    f"topic {topic!r} has {config.read_queue_count} queues on {name}, more than "
                    f"{queues}: use `contrail topic shrink {topic} --queues {queues}`"
                )
        for name in configs:
            client.update_topic(topic, read_queues=queues, broker=name)
        for name in configs:
            client.update_topic(topic, write_queues=queues, broker=name)
    if any(config.order for config in configs.values()):
        complain("a note: keys of this ordered topic go to other queues from now on")
    told = [_change(name, config, queues, queues) for name, config in configs.items()]
    if as_json:
        print_json({"topic": topic, "brokers": told})
        return
    for row in told:
        before, after = row["write_queues_before"], row["write_queues"]
        print(f"topic {topic} on {row['broker']}: {before} -> {after} queues")


def shrink(
    topic: Topic,
    queues: Queues,
    namesrv: NameServers = None,
    ctx: ContextName = None,
    cluster: Cluster = None,
    broker: Broker = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the last queues are consumed, and end it.")
    ] = False,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="How long to wait: 90s, 15m, 2h.")
    ] = "10m",
    quiet: Annotated[
        str,
        typer.Option("--quiet", metavar="TIME", help="For how long nothing must arrive there."),
    ] = "30s",
    abandon: Annotated[
        bool, typer.Option("--abandon", help="End it although messages there were not consumed.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Take queues away in two steps: first for writing and, once they are consumed, for reading."""
    check_not_system_topic(topic)
    timeout_span = parse_duration("--timeout", timeout)
    quiet_span = parse_duration("--quiet", quiet)
    with open_admin(namesrv, ctx) as client:
        require_topic(client, topic)
        configs = chosen_configs(client, topic, cluster, broker)
        too_wide = {name: one for name, one in configs.items() if _is_wider(one, queues)}
        if not too_wide:
            raise ConfigError(f"topic {topic!r} has {queues} queues or fewer already")
        work = _Shrinking(client, topic, queues, too_wide)
        agree(work.plan(), yes=yes, dry_run=dry_run, as_json=as_json)
        is_new = work.stop_writing()
        # Producers learn of the first step within half a minute: the second follows later.
        may_end = wait or not (is_new or (work.left() and not abandon))
        if may_end:
            work.wait(timeout_span if wait else quiet_span, quiet_span, abandon=abandon)
        is_done = may_end and work.stop_reading()
        left = work.left()
        after = client.topic_config(topic)
    told = {
        "topic": topic,
        "done": is_done,
        "brokers": [
            _change(name, one, after[name].read_queue_count, after[name].write_queue_count)
            for name, one in too_wide.items()
        ],
        "left": [one._asdict() for one in left],
    }
    if as_json:
        print_json(told)
    else:
        _print_shrunk(topic, queues, is_done, left)


def chosen_configs(
    client: Admin, topic: str, cluster: str | None, broker: str | None
) -> dict[str, TopicConfig]:
    """A topic's settings on the chosen brokers.

    Raises:
        NotFound: the topic is not on these brokers.
        RouteMissing: no broker has the topic.
    """
    if cluster is not None and broker is not None:
        raise ConfigError("--cluster and --broker: give one of the two")
    configs = client.topic_config(topic)
    if cluster is not None:
        names = {one.broker_name for one in client.brokers(cluster=cluster)}
        configs = {name: one for name, one in configs.items() if name in names}
    if broker is not None:
        configs = {name: one for name, one in configs.items() if name == broker}
    if not configs:
        raise NotFound(
            f"topic {topic!r} is not on {broker or cluster}: `contrail topic route {topic}` shows "
            "where it is"
        )
    return configs


class _Shrinking:
    """The two steps of taking queues away."""

    def __init__(
        self, client: Admin, topic: str, queues: int, configs: dict[str, TopicConfig]
    ) -> None:
        self._client = client
        self._topic = topic
        self._queues = queues
        self._configs = configs
        self._going = [
            MessageQueue(topic, name, queue_id)
            for name, one in configs.items()
            for queue_id in range(queues, max(one.read_queue_count, one.write_queue_count))
        ]
        self._rested: int | None = None

    def plan(self) -> list[str]:
        lines = []
        for name, config in self._configs.items():
            lines.append(
                f"topic {self._topic} on {name}: {config.write_queue_count} -> {self._queues} "
                f"queues to write, then {config.read_queue_count} -> {self._queues} to read once "
                "they are consumed"
            )
        return lines + [f"  {one}" for one in self.left()]

    def stop_writing(self) -> bool:
        """The first step; whether it still had to be done."""
        wide = [name for name, one in self._configs.items() if one.write_queue_count > self._queues]
        for name in wide:
            self._client.update_topic(self._topic, write_queues=self._queues, broker=name)
        return bool(wide)

    def stop_reading(self) -> bool:
        """The second step; False if messages came meanwhile, and the queues may be read again."""
        for name in self._configs:
            self._client.update_topic(self._topic, read_queues=self._queues, broker=name)
        if self._arrived() == self._rested:
            return True
        for name, one in self._configs.items():
            self._client.update_topic(self._topic, read_queues=one.read_queue_count, broker=name)
        complain(
            f"messages came to queues from {self._queues} on just when they were taken away: they "
            "may be read again"
        )
        return False

    def left(self) -> list[Left]:
        """The messages not consumed yet in the queues to remove, by each group's committed offsets.

        A group's lag is not used: it leaves out topics its members do not subscribe to now.
        """
        groups: list[str | None] = [*self._client.topic_consumers(self._topic)] or [None]
        found = []
        for queue in self._going:
            low = self._client.queue_offset_min(queue)
            high = self._client.queue_offset_max(queue)
            # A queue where a group has no offset is not consumed by it.
            for group in groups if high > low else []:
                begin = None if group is None else self._client.committed(group, queue)
                messages = high - max(low, begin or 0)
                found.append(Left(group, queue.broker_name, queue.queue_id, messages))
        return sorted(one for one in found if one.messages > 0)

    def _arrived(self) -> int:
        """The ends of the queues to remove; brokers report them after the removal, too."""
        return sum(self._client.queue_offset_max(queue) for queue in self._going)

    def _count(self) -> int:
        self._rested = self._arrived()
        return self._rested

    def wait(self, timeout: timedelta, quiet: timedelta, *, abandon: bool) -> None:
        """Wait until the last queues get no message and, unless abandoned, all are consumed."""
        wait_until_at_rest(
            self._count,
            lambda: [] if abandon else [str(one) for one in self.left()],
            timeout=timeout,
            quiet=quiet,
            late=(
                f"topic {self._topic!r} keeps its queues for reading; producers no longer write "
                "to the last ones. Run the same command again later, or with --abandon"
            ),
        )


def _is_wider(config: TopicConfig, queues: int) -> bool:
    return max(config.read_queue_count, config.write_queue_count) > queues


def _change(
    broker: str, before: TopicConfig, read_queues: int, write_queues: int
) -> dict[str, str | int]:
    return {
        "broker": broker,
        "read_queues_before": before.read_queue_count,
        "write_queues_before": before.write_queue_count,
        "read_queues": read_queues,
        "write_queues": write_queues,
    }


def _print_shrunk(topic: str, queues: int, is_done: bool, left: list[Left]) -> None:
    if is_done:
        print(f"topic {topic} has {queues} queues")
        return
    print(f"producers no longer write to queues from {queues} on; they may still be read")
    for one in left:
        print(f"  {one}")
    print(
        f"run `contrail topic shrink {topic} --queues {queues}` again in half a minute"
        if not left
        else "run the same command again when they are consumed, or with --wait"
    )
