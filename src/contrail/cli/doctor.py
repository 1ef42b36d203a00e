"""``contrail doctor``: explains problems in words, with the command that mends each."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated, Any

import typer

from contrail.cli.completion import group_names, topic_names
from contrail.cli.exits import ExitCode, NotFound
from contrail.cli.output import AsJson, print_json, print_rich
from contrail.cli.target import ContextName, NameServers, Target, target
from contrail.client.admin import Admin
from contrail.client.credentials import credentials_of
from contrail.clock import SystemClock
from contrail.insight.findings import ClusterFacts, Commands, Finding, GroupFacts, TopicFacts
from contrail.insight.findings.gathering import Gathering
from contrail.insight.findings.known import findings_of

app = typer.Typer(add_completion=False)

_TIMEOUT_MS = 3_000
_MARKS = {"error": "bold red", "warning": "bold yellow", "notice": "bold cyan"}


@app.command()
def doctor(
    namesrv: NameServers = None,
    ctx: ContextName = None,
    group: Annotated[
        str | None,
        typer.Option(
            "-g",
            "--group",
            metavar="GROUP",
            autocompletion=group_names,
            help="Only this group and its topics.",
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "-t",
            "--topic",
            metavar="TOPIC",
            autocompletion=topic_names,
            help="Only this topic of the groups.",
        ),
    ] = None,
    watch: Annotated[
        float,
        typer.Option(
            "--watch",
            min=0.0,
            max=3600.0,
            metavar="SECONDS",
            help="How long between two looks at a group.",
        ),
    ] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Explain problems of a cluster or a group in words, each with the command that mends it.

    Exit code 0 without findings, 1 with findings.
    """
    chosen = target(namesrv, ctx)
    with chosen.admin(timeout_ms=_TIMEOUT_MS) as admin:
        cluster, topics, groups = admin.run(_look, chosen, watch, group, topic)
    commands = Commands(_chosen_by(namesrv, ctx))
    found = findings_of(cluster, topics, groups, commands)
    if as_json:
        print_json(_report(cluster, groups, found))
    else:
        _tell(cluster, groups, found)
    raise typer.Exit(ExitCode.FAILED if found else ExitCode.OK)


def _gathering(admin: Admin, chosen: Target, watch: float) -> Gathering:
    def admin_of(name_server: str) -> Admin:
        return Admin(name_server, timeout_ms=_TIMEOUT_MS, **chosen.client_options())

    return Gathering(
        admin,
        admin_of,
        SystemClock().now_ms,
        watch_ms=int(watch * 1000),
        is_open=not chosen.tls and credentials_of(os.environ) is None,
    )


async def _look(
    admin: Admin, chosen: Target, watch: float, group: str | None, topic: str | None
) -> tuple[ClusterFacts, list[TopicFacts], list[GroupFacts]]:
    gathering = _gathering(admin, chosen, watch)
    cluster = await gathering.cluster()
    if not any(one.runtime is not None for one in cluster.brokers):
        # No broker could be asked about groups; problems of the brokers are still reported.
        return cluster, [], []
    if group is not None and not await gathering.is_known(group):
        raise NotFound(
            f"no broker knows consumer group {group!r}: correct the name; `contrail group list` "
            "shows them all"
        )
    names = await gathering.group_names() if group is None else [group]
    groups = await gathering.groups(names, is_named=group is not None, topic=topic)
    if topic is not None:
        groups = [one for one in groups if _concerns(one, topic) or one.is_named]
    topics = {name: facts for one in groups for name, facts in one.topics.items()}
    if topic is not None:
        topics.setdefault(topic, await gathering.topic(topic))
        if topics[topic].route is None and not any(_concerns(one, topic) for one in groups):
            raise NotFound(
                f"there is no topic {topic!r}, and no group subscribes to it: correct the name; "
                "`contrail topic list` shows them all"
            )
    return cluster, list(topics.values()), groups


def _concerns(facts: GroupFacts, topic: str) -> bool:
    return topic in facts.connections.subscriptions or topic in facts.after.by_topic


def _chosen_by(namesrv: str | None, context: str | None) -> list[str]:
    if namesrv is not None:
        return ["-n", namesrv]
    return [] if context is None else ["--ctx", context]


def _report(
    cluster: ClusterFacts, groups: list[GroupFacts], found: list[Finding]
) -> dict[str, Any]:
    return {
        "name_servers": list(cluster.namesrv),
        "brokers": [one.broker.broker_name for one in cluster.brokers],
        "groups": [one.group for one in groups],
        "findings": [{**asdict(one), "evidence": list(one.evidence)} for one in found],
    }


def _tell(cluster: ClusterFacts, groups: list[GroupFacts], found: list[Finding]) -> None:
    from rich.text import Text

    for one in found:
        print_rich(
            Text.assemble(
                (f"{one.severity.upper()} {one.id}", _MARKS[one.severity]), f"  {one.text}"
            )
        )
        for line in one.evidence:
            print_rich(Text(f"    {line}", style="dim"))
        print_rich(Text.assemble(("  why  ", "bold"), one.cause))
        print_rich(Text.assemble(("  fix  ", "bold"), (one.fix, "green")))
        print()
    looked = f"{len(cluster.brokers)} brokers and {len(groups)} groups"
    print(f"{len(found)} findings; looked at {looked}." if found else f"All well: {looked}.")
