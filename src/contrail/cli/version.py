"""``contrail version``: versions, compiled kernels and optional parts."""

from __future__ import annotations

import json
import platform
import shutil
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as distribution_version
from typing import Annotated

import typer

from contrail import __version__
from contrail.kernels import compiled_kernels

# optional part -> its purpose
OPTIONAL_PARTS = {
    "isal": "faster CRC of message bodies",
    "pyspark": "the Spark connector",
    "java": "tests against Apache RocketMQ",
}

app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True)
class VersionReport:
    """The facts of ``contrail version``; ``None`` marks an absent optional part."""

    contrail: str
    python: str
    platform: str
    kernels: dict[str, str]
    optional: dict[str, str | None]


@app.command()
def version(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show versions, which kernels are compiled, and which optional parts are present."""
    report = version_report()
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2))
    else:
        _print_report(report)


def version_report() -> VersionReport:
    """Look at this process and this machine."""
    return VersionReport(
        contrail=__version__,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        platform=platform.platform(),
        kernels={
            name: "compiled" if compiled else "interpreted"
            for name, compiled in compiled_kernels().items()
        },
        optional={
            "isal": _installed("isal"),
            "pyspark": _installed("pyspark"),
            "java": shutil.which("java"),
        },
    )


def _installed(distribution: str) -> str | None:
    try:
        return distribution_version(distribution)
    except PackageNotFoundError:
        return None


def _print_report(report: VersionReport) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_row("contrail", report.contrail)
    table.add_row("python", report.python)
    table.add_row("platform", report.platform)
    for name, state in report.kernels.items():
        table.add_row(f"kernel {name}", state, style=None if state == "compiled" else "yellow")
    for name, found in report.optional.items():
        absent = f"absent ({OPTIONAL_PARTS[name]})"
        table.add_row(name, found or absent, style=None if found else "dim")
    Console(highlight=False, soft_wrap=True).print(table)
