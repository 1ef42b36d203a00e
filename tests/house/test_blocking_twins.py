"""The blocking and the asyncio clients have the same names, methods and settings."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import contrail
from contrail import aio
from contrail.client.consumer_settings import ConsumerSettings
from contrail.client.options import (
    ClientOptions,
    PopOptions,
    ProducerOptions,
    PullOptions,
    PushOptions,
)
from contrail.client.pop_settings import PopSettings
from contrail.client.producer_settings import ProducerSettings
from contrail.client.pull_settings import PullSettings
from contrail.client.settings import ClientSettings

ROOT = Path(__file__).parents[2]
CLASSES = ["Producer", "PushConsumer", "PullConsumer", "PopConsumer", "Admin"]


def names_of(kind: type[Any]) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def parameters_of(kind: type[Any], name: str) -> list[str]:
    member = inspect.getattr_static(kind, name)
    if isinstance(member, property):
        return ["a property"]
    return [str(one.replace(annotation="")) for one in _parameters(member)]


def _parameters(member: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(member).parameters.values())


def test_the_written_twins_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "make_blocking_twins.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.proves("client.shared.two-worlds")
@pytest.mark.parametrize("name", CLASSES)
def test_a_class_has_the_same_methods_in_both_worlds(name: str) -> None:
    blocking, asynchronous = getattr(contrail, name), getattr(aio, name)
    inner = {"subscriptions", "handlers_timeout_s"} | names_of_sides()
    assert names_of(asynchronous) - names_of(blocking) - inner == set()


def names_of_sides() -> set[str]:
    """The methods that a client instance calls of a consumer; no business of an application."""
    from contrail.client.sides import ConsumerSide, ProducerSide

    return names_of(ConsumerSide) | names_of(ProducerSide) - {"group"}


@pytest.mark.proves("client.shared.two-worlds")
@pytest.mark.parametrize("name", CLASSES)
def test_a_method_takes_the_same_arguments_in_both_worlds(name: str) -> None:
    blocking, asynchronous = getattr(contrail, name), getattr(aio, name)
    for method in sorted(names_of(asynchronous) & names_of(blocking)):
        assert parameters_of(blocking, method) == parameters_of(asynchronous, method), method


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (ProducerOptions, ProducerSettings),
        (PushOptions, ConsumerSettings),
        (PullOptions, PullSettings),
        (PopOptions, PopSettings),
    ],
)
def test_the_options_of_a_class_are_its_settings(options: Any, settings: Any) -> None:
    shared = {field.name for field in dataclasses.fields(ClientSettings)} - {"namesrv"}
    assert set(get_type_hints(ClientOptions)) == shared
    own = {field.name for field in dataclasses.fields(settings)}
    assert set(get_type_hints(options)) == own | shared


@pytest.mark.parametrize("name", sorted(aio.__all__))
def test_every_name_of_the_asyncio_module_is_in_the_package(name: str) -> None:
    assert getattr(contrail, name) is not None
