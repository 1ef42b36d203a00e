"""docs/reference/client.md has every option, every admin method and every public name."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import contrail
from contrail import aio
from contrail.client.consumer_settings import ConsumerSettings
from contrail.client.pop_settings import PopSettings
from contrail.client.producer_settings import ProducerSettings
from contrail.client.pull_settings import PullSettings
from contrail.client.settings import ClientSettings

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "client.md"
CLIENTS = ("Producer", "PushConsumer", "PullConsumer", "PopConsumer", "Admin")
# How a table names a method: with its arguments.
METHOD = re.compile(r"`(\w+)\(")
NAME = re.compile(r"`(\w+)`")


def section(heading: str) -> str:
    text = PAGE.read_text(encoding="utf-8")
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(heading: str) -> list[list[str]]:
    """The cells of the tables of a section, without their headings."""
    lines = [line for line in section(heading).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def options(heading: str) -> dict[str, list[str]]:
    """Option -> its Apache name, its default and its meaning, as the page has them."""
    found = [row for row in rows(heading) if len(row) == 4 and row[0].startswith("`")]
    return {name.strip("`"): rest for name, *rest in found}


def default_text(default: Any) -> str:
    if default is dataclasses.MISSING:
        return "required"
    if default is None or default == ():
        return "none"
    if isinstance(default, enum.Enum):
        return f"`{default.name}`"
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:,}" if isinstance(default, int | float) else f"`{default}`"


def own_options(client: str) -> Iterator[tuple[str, Any]]:
    """The named parameters of a client beside the fields of its settings."""
    for parameter in inspect.signature(getattr(aio, client).__init__).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            yield parameter.name, parameter.default


def fields_of(settings: type[Any] | None) -> Iterator[tuple[str, Any]]:
    if settings is not None:
        for field in dataclasses.fields(settings):
            yield field.name, field.default


@pytest.mark.parametrize(
    ("heading", "settings"),
    [
        ("Every client", ClientSettings),
        ("Producer", ProducerSettings),
        ("PushConsumer", ConsumerSettings),
        ("PullConsumer", PullSettings),
        ("PopConsumer", PopSettings),
        ("Admin", None),
    ],
)
def test_every_option_is_on_the_page_with_its_default(
    heading: str, settings: type[Any] | None
) -> None:
    taken = dict(fields_of(settings))
    if heading in CLIENTS:
        taken |= dict(own_options(heading))
    documented = options(heading)
    assert len(taken) > 3
    assert {name: cells[1] for name, cells in documented.items()} == {
        name: default_text(default) for name, default in taken.items()
    }
    for name, (apache, _, meaning) in documented.items():
        assert apache and meaning, name


def test_every_method_of_the_admin_client_is_on_the_page() -> None:
    public = {
        name
        for name, _ in inspect.getmembers(aio.Admin, inspect.isfunction)
        if not name.startswith("_")
    }
    documented = [name for row in rows("Admin") if len(row) == 2 for name in METHOD.findall(row[0])]
    assert sorted(documented) == sorted(public)
    assert len(public) > 50


def test_every_public_name_is_on_the_page() -> None:
    both, _, alone = section("Public names").partition("In `contrail` alone:")

    def names(text: str) -> list[str]:
        cells = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `")]
        return sorted(name for cell in cells for name in NAME.findall(cell))

    assert names(both) == sorted(aio.__all__)
    assert names(alone) == sorted(set(contrail.__all__) - set(aio.__all__))
