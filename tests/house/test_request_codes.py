"""docs/reference/request-codes.md says of each request code what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrail.protocol.codes import CODE_CLASSES, RequestCode
from contrail.testing import LocalCluster

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "request-codes.md"
SERVED_HEADER = "| code | name | class | served by |"


def documented() -> dict[int, tuple[str, str, str]]:
    """Code -> name, class and the servers of it, as the page has them."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and line[2].isdigit()]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {int(code): (name.strip("`"), kind, by) for code, name, kind, by in cells}


def expected() -> dict[int, tuple[str, str, str]]:
    by = served()
    return {
        int(code): (code.name, CODE_CLASSES[code].value, _by(int(code), by)) for code in RequestCode
    }


def served() -> dict[str, set[int]]:
    """The codes that have a handler in a broker, in a NameServer, and in members of groups only.

    The broker has access control.
    """
    on = {"authenticationEnabled": "true", "authorizationEnabled": "true"}
    with LocalCluster(properties=on) as cluster, LocalCluster(members=1) as group:
        broker, nameserver = cluster.brokers[0].app, cluster.nameservers[0].app
        member = group.brokers[0].app
        assert broker is not None and nameserver is not None and member is not None
        return {
            "broker": set(broker.router._handlers),
            "NameServer": set(nameserver.router._handlers),
            "members of failover groups": set(member.router._handlers)
            - set(broker.router._handlers),
        }


def _by(code: int, served_by: dict[str, set[int]]) -> str:
    names = [name for name, codes in served_by.items() if code in codes]
    return ", ".join(names) or "no server: answered 3"


@pytest.mark.proves("wire.frames.codes-by-name")
def test_the_page_lists_every_request_code_as_the_code_has_it() -> None:
    assert SERVED_HEADER in PAGE.read_text(encoding="utf-8")
    assert documented() == expected()
