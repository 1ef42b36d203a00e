"""Settings under RocketMQ's property names: how a room declares, reads and checks its settings.

A room's settings are one frozen dataclass; ``setting`` gives each field its property name and, for
a number, its range: a value out of ``lowest`` to ``highest`` is refused; an allowed value out of
``within`` is moved into that range, as in RocketMQ, and ``moved_notes`` reports it. Values come as
text from a properties file, or typed from Python. The kinds are ``bool``, ``int``, ``str``,
``Path``, ``tuple[Path, ...]`` and enumerations of texts.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from contrail.errors import ConfigError

T = TypeVar("T")
Field = dataclasses.Field[Any]

_APACHE = "apache"
_RANGE = "range"
_WITHIN = "within"
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_PATHS = "tuple[Path, ...]"


def setting(
    apache_name: str,
    default: Any = dataclasses.MISSING,
    *,
    make_default: Callable[[], Any] | None = None,
    lowest: int | None = None,
    highest: int | None = None,
    within: tuple[int, int] | None = None,
) -> Any:
    """A field of a settings dataclass; without a default it must be given."""
    metadata = {_APACHE: apache_name, _RANGE: (lowest, highest), _WITHIN: within}
    if make_default is not None:
        return dataclasses.field(default_factory=make_default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def names_of(kind: type[Any]) -> frozenset[str]:
    """The property names of a settings dataclass."""
    return frozenset(str(field.metadata[_APACHE]) for field in dataclasses.fields(kind))


def read_settings(kind: type[T], properties: Mapping[str, str]) -> T:
    """Settings from properties; names that are not this dataclass's are ignored.

    Raises:
        ConfigError: a value does not parse, is out of range or missing; the message names it.
    """
    return kind(**parse_settings(kind, properties))


def parse_settings(kind: type[Any], properties: Mapping[str, str]) -> dict[str, Any]:
    """The values of ``properties``, by the names of the dataclass's fields.

    Raises:
        ConfigError: a value does not parse, or a required setting is missing.
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        text = properties.get(field.metadata[_APACHE])
        if text is not None:
            values[field.name] = _parsed(field, text.strip())
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{field.metadata[_APACHE]} is missing: it has no default")
    return values


def properties_of(settings: object) -> dict[str, str]:
    """All settings by RocketMQ's names, as texts that ``read_settings`` reads back."""
    return {
        str(field.metadata[_APACHE]): setting_text(getattr(settings, field.name))
        for field in dataclasses.fields(settings)  # type: ignore[arg-type]
    }


def setting_text(value: object) -> str:
    """A setting's value as RocketMQ's properties files write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    return str(value)


def require_sound(settings: object) -> None:
    """Refuse a value of another kind or out of range; for ``__post_init__``.

    Texts become paths and enumerations if the field has that type.

    Raises:
        ConfigError: the message names the setting and the values it may have.
    """
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        value = _coerced(field, getattr(settings, field.name))
        object.__setattr__(settings, field.name, value)
        lowest, highest = field.metadata[_RANGE]
        if (lowest is not None and value < lowest) or (highest is not None and value > highest):
            rule = f"at least {lowest}" if highest is None else f"from {lowest} to {highest}"
            raise _refusal(field, value, rule)
        if field.metadata[_WITHIN] is not None:
            object.__setattr__(settings, field.name, _moved(value, *field.metadata[_WITHIN]))


def moved_notes(settings: object, properties: Mapping[str, str]) -> list[str]:
    """A line for each number of ``properties`` that ``settings`` moved into its range."""
    notes = []
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        text = properties.get(str(field.metadata[_APACHE]), "").strip()
        used = getattr(settings, field.name)
        if field.type == "int" and text and int(text) != used:
            note = f"{field.metadata[_APACHE]}={text} is taken as {used}"
            if field.metadata[_WITHIN] is not None:
                lowest, highest = field.metadata[_WITHIN]
                note += f": RocketMQ's range is {lowest} to {highest}"
            notes.append(note)
    return notes


def _moved(value: int, lowest: int, highest: int) -> int:
    return max(lowest, min(value, highest))


def _parsed(field: Field, text: str) -> Any:
    if field.type == "bool":
        if text.lower() not in ("true", "false"):
            raise _refusal(field, text, "true or false")
        return text.lower() == "true"
    if field.type == "int":
        if not _NUMBER.fullmatch(text):
            raise _refusal(field, text, "a whole number")
        return int(text)
    # Other kinds are read by ``require_sound``.
    return text


def _coerced(field: Field, value: Any) -> Any:
    """The value as the field's type, if the text has only one meaning; else refused."""
    if isinstance(field.default, StrEnum):
        return _coerced_choice(field, type(field.default), value)
    if field.type == _PATHS:
        return _coerced_paths(field, value)
    is_sound, rule = _SOUND[str(field.type)]
    if not is_sound(value):
        raise _refusal(field, value, rule)
    return Path(value) if field.type == "Path" else value


_SOUND: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "bool": (lambda value: isinstance(value, bool), "True or False"),
    "int": (lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number"),
    "str": (lambda value: isinstance(value, str), "text"),
    "Path": (lambda value: isinstance(value, str | Path), "a path"),
}


def _coerced_choice(field: Field, choices: type[StrEnum], value: Any) -> StrEnum:
    # Refuse any other text: compared with the enumeration it would silently be unequal.
    if value not in list(choices):
        raise _refusal(field, value, " or ".join(choices))
    return choices(value)


def _coerced_paths(field: Field, value: Any) -> tuple[Path, ...]:
    if isinstance(value, str):
        value = [piece.strip() for piece in value.split(",") if piece.strip()]
    elif isinstance(value, Path):
        value = [value]
    if not isinstance(value, list | tuple) or not all(isinstance(p, str | Path) for p in value):
        raise _refusal(field, value, "paths")
    return tuple(Path(piece) for piece in value)


def _refusal(field: Field, value: object, rule: str) -> ConfigError:
    return ConfigError(f"{field.metadata[_APACHE]}={value!r} is refused: it must be {rule}")
