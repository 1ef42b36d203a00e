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
    broker, nameserver = served()
    return {
        int(code): (code.name, CODE_CLASSES[code].value, _by(int(code), broker, nameserver))
        for code in RequestCode
    }


def served() -> tuple[set[int], set[int]]:
    """The codes that have a handler in a broker, and in a NameServer."""
    with LocalCluster() as cluster:
        broker, nameserver = cluster.brokers[0].app, cluster.nameservers[0].app
        assert broker is not None and nameserver is not None
        return set(broker.router._handlers), set(nameserver.router._handlers)


def _by(code: int, broker: set[int], nameserver: set[int]) -> str:
    names = [
        name for name, codes in (("broker", broker), ("NameServer", nameserver)) if code in codes
    ]
    return ", ".join(names) or "no server: answered 3"


@pytest.mark.proves("wire.frames.codes-by-name")
def test_the_page_lists_every_request_code_as_the_code_has_it() -> None:
    assert SERVED_HEADER in PAGE.read_text(encoding="utf-8")
    assert documented() == expected()
