"""The audit log, newest lines first."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec

from contrail.console.calls import Call
from contrail.console.contract import Route
from contrail.console.services.audit_log import AuditLine
from contrail.console.state.roles import Role


class AuditQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How many lines."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100


class AuditPage(msgspec.Struct):
    """Lines of the audit log."""

    rows: list[AuditLine]


async def audit(call: Call) -> AuditPage:
    # Two files of 10 MiB at most: read by a thread.
    rows = await asyncio.to_thread(call.parts.audit.newest, call.query.limit)
    return AuditPage(rows)


ROUTES = (
    Route(
        method="GET",
        path="/audit",
        name="audit",
        summary="Log-ins and changes, newest first",
        handle=audit,
        query=AuditQuery,
        answer=AuditPage,
        role=Role.ADMIN,
    ),
)
