"""Names of topics and groups for the shell: with a short timeout, and none without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import typer

from contrail.cli.target import Target, target
from contrail.client.admin import Admin
from contrail.errors import ContrailError

# A person who pressed Tab waits for it.
_PATIENCE_S = 1.0

_Ask = Callable[[Admin], Awaitable[Iterable[str]]]


def topic_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The topics of the cluster that the line names so far, or that is in use."""
    return _names(ctx, incomplete, lambda admin: admin.topics(internal=False))


def group_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Its consumer groups, of the brokers that answer."""
    return _names(ctx, incomplete, lambda admin: admin.groups(allow_partial=True))


def _names(ctx: typer.Context, incomplete: str, ask: _Ask) -> list[str]:
    try:
        cluster = target(ctx.params.get("namesrv"), ctx.params.get("ctx"))
        found = asyncio.run(_asked(cluster, ask))
    except (ContrailError, TimeoutError):
        # A line that is being typed is no place for messages.
        return []
    return sorted(name for name in found if name.startswith(incomplete))


async def _asked(cluster: Target, ask: _Ask) -> Iterable[str]:
    async with (
        asyncio.timeout(_PATIENCE_S),
        Admin(cluster.namesrv, **cluster.client_options()) as admin,
    ):
        return await ask(admin)
