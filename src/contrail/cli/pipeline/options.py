"""Options of ``format("rocketmq")`` on the command line."""

from __future__ import annotations

from contrail.errors import OptionInvalid


def named_options(given: list[str] | None) -> dict[str, str]:
    """``NAME=VALUE`` texts as a table.

    Raises:
        OptionInvalid: one is not of that form.
    """
    options = {}
    for one in given or ():
        name, found, value = one.partition("=")
        if not found or not name:
            raise OptionInvalid(f"--option {one!r} is not NAME=VALUE")
        options[name] = value
    return options
