"""The options of Apache's ``mqadmin``: a table for each command, and the parser of a command line.

Apache's tool reads its line with commons-cli, so the same spellings are understood here: ``-b x``,
``-bx``, ``-b=x``, ``--brokerAddr x``, ``--brokerAddr=x``, ``-brokerAddr x``, and the beginning of
a long name that no other one shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from contrail.cli.target import Target
from contrail.client.blocking.admin import Admin
from contrail.errors import ConfigError, OptionInvalid


@dataclass(frozen=True, slots=True)
class Option:
    """One option; without a letter it is keyed by its long name."""

    letter: str | None
    long: str
    help: str
    required: bool = False
    takes_value: bool = True

    @property
    def key(self) -> str:
        return self.letter or self.long

    @property
    def shown(self) -> str:
        names = [f"-{self.letter}"] if self.letter else []
        return ", ".join([*names, f"--{self.long}"])


def need(letter: str, long: str, help: str) -> Option:
    """An option that must be given."""
    return Option(letter, long, help, required=True)


def may(letter: str | None, long: str, help: str) -> Option:
    """An option that may be given."""
    return Option(letter, long, help)


def switch(letter: str | None, long: str, help: str) -> Option:
    """An option without a value."""
    return Option(letter, long, help, takes_value=False)


@dataclass(frozen=True, slots=True)
class Command:
    """A command of ``mqadmin``: its options, its request codes and its function.

    Exactly one of ``one_of`` must be given, and at least one of ``any_of``, where the first counts.
    """

    name: str
    help: str
    run: Callable[[Call, Admin], None]
    options: tuple[Option, ...] = ()
    codes: tuple[int, ...] = ()
    one_of: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()

    @property
    def all_options(self) -> tuple[Option, ...]:
        return (*self.options, *EVERYWHERE)


# Apache's commands have the first two, ours the third as well.
EVERYWHERE = (
    switch("h", "help", "show the options"),
    may("n", "namesrvAddr", "NameServers, as host:port;host:port"),
    may(None, "ctx", "a cluster named by `contrail ctx add`"),
)


class Call:
    """The values of a command line, by the letter of the option, without outer blanks."""

    def __init__(self, values: Mapping[str, str], target: Target) -> None:
        self._values = values
        self.target = target

    def has(self, key: str) -> bool:
        return key in self._values

    def text(self, key: str) -> str:
        """The value of a required option."""
        return self._values[key]

    def maybe(self, key: str) -> str | None:
        return self._values.get(key)

    def number(self, key: str, default: int = 0) -> int:
        """Raises ``OptionInvalid`` for a value that is no whole number."""
        text = self._values.get(key)
        if text is None:
            return default
        try:
            return int(text)
        except ValueError:
            raise OptionInvalid(f"-{key} {text!r} is no whole number") from None

    def truth(self, key: str, default: bool = False) -> bool:
        """As Java reads it: everything but ``true`` is false."""
        text = self._values.get(key)
        return default if text is None else text.lower() == "true"


def read_line(command: Command, words: Sequence[str]) -> dict[str, str]:
    """The values of a command line by letter; the first of two counts, as for commons-cli.

    Raises:
        ConfigError: an option is unknown, lacks its value, or is missing.
    """
    values: dict[str, str] = {}
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        option, value = _match(command, word)
        if option.takes_value and value is None:
            value = _next_value(command, option, waiting)
        values.setdefault(option.key, _unquoted(value or "").strip())
    if "h" not in values:
        _check_given(command, values)
    return values


def _match(command: Command, word: str) -> tuple[Option, str | None]:
    name, equals, value = word.lstrip("-").partition("=")
    given = value if equals else None
    if not word.startswith("-") or not name:
        raise ConfigError(f"mqadmin {command.name}: {word!r} is no option; see {_help(command)}")
    short = {one.letter: one for one in command.all_options if one.letter}
    if not word.startswith("--"):
        if name in short:
            return _with_value(command, short[name], given)
        if len(name) == 1:
            raise _unknown(command, word)
    long = _long_option(command, word, name)
    if long is not None:
        return _with_value(command, long, given)
    if word.startswith("--") or name[0] not in short:
        raise _unknown(command, word)
    return _with_value(command, short[name[0]], word[2:])


def _long_option(command: Command, word: str, name: str) -> Option | None:
    exact = [one for one in command.all_options if one.long == name]
    near = exact or [one for one in command.all_options if one.long.startswith(name)]
    if len(near) > 1:
        meant = " or ".join(f"--{one.long}" for one in near)
        raise ConfigError(f"mqadmin {command.name}: {word} may be {meant}; see {_help(command)}")
    return near[0] if near else None


def _with_value(command: Command, option: Option, value: str | None) -> tuple[Option, str | None]:
    if value is not None and not option.takes_value:
        raise ConfigError(
            f"mqadmin {command.name}: {option.shown} takes no value, not {value!r}; "
            f"see {_help(command)}"
        )
    return option, value


def _next_value(command: Command, option: Option, waiting: list[str]) -> str:
    if not waiting or _looks_like_option(command, waiting[0]):
        raise ConfigError(
            f"mqadmin {command.name}: {option.shown} needs a value; see {_help(command)}"
        )
    return waiting.pop(0)


def _looks_like_option(command: Command, word: str) -> bool:
    """Numbers below zero are values, and so are words that no option of the command begins with."""
    if not word.startswith("-") or word == "-" or word[1:].replace(".", "", 1).isdigit():
        return False
    name = word.lstrip("-").partition("=")[0]
    return any(
        (one.letter == name[:1] and not word.startswith("--")) or one.long.startswith(name)
        for one in command.all_options
    )


def _check_given(command: Command, values: Mapping[str, str]) -> None:
    missing = [one.shown for one in command.options if one.required and one.key not in values]
    if missing:
        raise ConfigError(
            f"mqadmin {command.name} needs {' and '.join(missing)}; see {_help(command)}"
        )
    chosen = [key for key in command.one_of or command.any_of if key in values]
    wanted = " or ".join(f"-{key}" for key in command.one_of or command.any_of)
    if wanted and not chosen:
        raise ConfigError(f"mqadmin {command.name} needs {wanted}; see {_help(command)}")
    if command.one_of and len(chosen) > 1:
        raise ConfigError(f"mqadmin {command.name}: give one of {wanted}; see {_help(command)}")


def _unknown(command: Command, word: str) -> ConfigError:
    return ConfigError(f"mqadmin {command.name} has no option {word}; see {_help(command)}")


def _help(command: Command) -> str:
    return f"`contrail mqadmin help {command.name}`"


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] == '"' and '"' not in value[1:-1]:
        return value[1:-1]
    return value
