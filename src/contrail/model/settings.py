"""Settings under RocketMQ's property names: how a room declares, reads and checks its own.

A room's settings are one frozen dataclass; ``setting`` gives each field its property name and, for
a number, its range. Values come as text from a properties file, or typed from Python.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from contrail.errors import ConfigError

T = TypeVar("T")

_APACHE = "apache"
_RANGE = "range"


def setting(
    apache_name: str, default: Any, *, lowest: int | None = None, highest: int | None = None
) -> Any:
    """A field of a settings dataclass."""
    metadata = {_APACHE: apache_name, _RANGE: (lowest, highest)}
    return dataclasses.field(default=default, metadata=metadata)


def names_of(kind: type[Any]) -> frozenset[str]:
    """The property names of a settings dataclass."""
    return frozenset(str(field.metadata[_APACHE]) for field in dataclasses.fields(kind))


def read_settings(kind: type[T], properties: Mapping[str, str]) -> T:
    """Settings from properties; names that are not this dataclass's are left alone.

    Raises:
        ConfigError: a value does not parse or is out of range; the message names it.
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        text = properties.get(field.metadata[_APACHE])
        if text is not None:
            values[field.name] = _parsed(field, text.strip())
    return kind(**values)


def require_sound(settings: object) -> None:
    """Refuse a value of another type or out of range; for ``__post_init__``.

    Raises:
        ConfigError: the message names the setting and what it must be.
    """
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        value = getattr(settings, field.name)
        _require_type(field, value)
        lowest, highest = field.metadata[_RANGE]
        if (lowest is not None and value < lowest) or (highest is not None and value > highest):
            rule = f"at least {lowest}" if highest is None else f"from {lowest} to {highest}"
            raise _refusal(field, value, rule)


def _parsed(field: dataclasses.Field[Any], text: str) -> Any:
    kind = str(field.type)
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise _refusal(field, text, "true or false")
        return text.lower() == "true"
    if kind == "int":
        try:
            return int(text)
        except ValueError:
            raise _refusal(field, text, "a whole number") from None
    return text


def _require_type(field: dataclasses.Field[Any], value: Any) -> None:
    kind = str(field.type)
    is_sound = {
        "bool": isinstance(value, bool),
        "int": isinstance(value, int) and not isinstance(value, bool),
        "str": isinstance(value, str),
    }.get(kind, True)
    if not is_sound:
        rule = {"bool": "True or False", "int": "a whole number", "str": "text"}[kind]
        raise _refusal(field, value, rule)


def _refusal(field: dataclasses.Field[Any], value: object, rule: str) -> ConfigError:
    return ConfigError(f"{field.metadata[_APACHE]}={value!r} is refused: it must be {rule}")
