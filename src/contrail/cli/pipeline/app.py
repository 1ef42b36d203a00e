"""The ``contrail pipeline`` group. Each command is the function of its file's name."""

from __future__ import annotations

from importlib import import_module

import typer

# In the order of the help. None of these files imports Spark before its command is called.
JOBS = ("migrate", "archive", "restore", "compact", "replay", "dedupe", "sql", "report")

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def pipeline() -> None:
    """Move, keep and read messages at scale with Spark."""


for _job in JOBS:
    app.command(_job)(getattr(import_module(f"contrail.cli.pipeline.{_job}"), _job))
