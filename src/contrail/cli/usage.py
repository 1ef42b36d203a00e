"""Usage errors in one line: the input, the allowed values, and the help."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import typer

# Typer's newer releases bring a parser of their own and older ones use click's: the exceptions have
# the same names, and are found beside the one that Typer shows.
_PARSER = import_module(typer.BadParameter.__module__)
UsageError: type[Exception] = _PARSER.UsageError
# Typer's parser or its files; a UsageError is one of them.
ParserError: type[Exception] = _PARSER.ClickException
# Releases without it show the help and end.
_HELP_SHOWN: Any = getattr(_PARSER, "NoArgsIsHelpError", ())

_ALLOWED = {
    "int_parsing": "give a whole number",
    "float_parsing": "give a number",
    "greater_than_equal": "it must be {ge} or more",
    "less_than_equal": "it must be {le} or less",
}
_VALUE_ERROR = "Value error, "


def help_was_asked(error: Exception) -> bool:
    """Whether a group was called by its bare name, which shows its help."""
    return isinstance(error, _HELP_SHOWN)


def refuse_blank_arguments(command: Any) -> None:
    """Have a command, and its subcommands, refuse an empty argument."""
    for inner in getattr(command, "commands", {}).values():
        refuse_blank_arguments(inner)
    for param in command.params:
        if param.param_type_name == "argument" and param.nargs == 1:
            param.callback = _refusing_blanks(param.callback)


def _refusing_blanks(then: Any) -> Any:
    def check(context: Any, param: Any, value: Any) -> Any:
        if isinstance(value, str) and not value.strip():
            raise typer.BadParameter(f"it is blank{_meaning(param)}", ctx=context, param=param)
        return value if then is None else then(context, param, value)

    return check


def usage_line(error: Any, command: str) -> str:
    """The error as one line, without the program's name; ``command`` is the typed one, if known."""
    # Unless a value is missing, the parser's error names the option.
    context = getattr(error, "ctx", None)
    name = command if context is None else context.command_path
    text = " ".join(_text(error).rstrip(".").split())
    return f"{text}{' See' if text.endswith('?') else '; see'} `{name} --help`"


def _text(error: Any) -> str:
    if isinstance(error, _PARSER.NoSuchOption):
        near = error.possibilities
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        return f"there is no option {error.option_name}{meant}"
    if isinstance(error, _PARSER.MissingParameter) and error.param is not None:
        return f"{_name(error.param)} is missing{_meaning(error.param)}"
    if isinstance(error, _PARSER.BadParameter) and error.param is not None:
        return _refused(error)
    message: str = error.format_message()
    return message[:1].lower() + message[1:]


def _name(param: Any) -> str:
    """An option by its long name, an argument as the help writes it."""
    if param.param_type_name == "option":
        return str(max(param.opts, key=len))
    return str(param.metavar or param.name.upper())


def _meaning(param: Any) -> str:
    text = (getattr(param, "help", None) or "").rstrip(".")
    return f" ({text[:1].lower()}{text[1:]})" if text else ""


def _refused(error: Any) -> str:
    """Typer's newer releases validate with pydantic, and only that error has the value."""
    details = getattr(error.__cause__, "errors", None)
    if details is None:
        return f"{_name(error.param)}: {error.message}"
    first = details()[0]
    return f"{_name(error.param)} {first['input']}: {_allowed(first)}"


def _allowed(detail: Mapping[str, Any]) -> str:
    known = _ALLOWED.get(detail["type"])
    if known is not None:
        return known.format(**detail.get("ctx", {}))
    return str(detail["msg"]).removeprefix(_VALUE_ERROR)
