"""Write docs/reference/api.md from the console's routes: ``python -m scripts.console_api``."""

from __future__ import annotations

import tempfile
from pathlib import Path

from contrail.client.admin import Admin
from contrail.clock import SystemClock
from contrail.console.app import Console
from contrail.console.config import ConsoleConfig
from contrail.console.contract import PREFIX, Route

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "api.md"
HEAD = """# The console's API

Written by `python -m scripts.console_api` from the table of routes. Types of queries, bodies and
answers are in `/api/v1/openapi.json` of a running console (OpenAPI 3.1). A role may do all that the
roles before it may: viewer, reader, operator, admin. Scripts send the token of an account:
`Authorization: Bearer TOKEN`.

A path that ends with `:plan` changes nothing: it answers a plan, and `POST /plans/{plan_id}:run`
runs it once, if the facts are still the same.

| method | path under `/api/v1` | role | does |
| --- | --- | --- | --- |
"""


def routes() -> tuple[Route, ...]:
    with tempfile.TemporaryDirectory() as folder:
        config = ConsoleConfig(folder=Path(folder))
        return Console(config, clock=SystemClock(), admin=Admin("127.0.0.1:9876")).routes


def page() -> str:
    """The page as it must be."""
    assert PREFIX == "/api/v1"
    rows = [
        f"| {one.method} | `{one.path}` | {'none' if one.role is None else one.role.word} "
        f"| {one.summary} |"
        for one in routes()
    ]
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
