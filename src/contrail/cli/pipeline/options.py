"""Options of the jobs on the command line: those of ``format("rocketmq")``, and store folders."""

from __future__ import annotations

from pathlib import Path

from contrail.cli.store_folder import store_folder
from contrail.errors import OptionInvalid


def found_store(given: str | None) -> str | None:
    """The store that is meant by ``--store-path``: the folder, or the ``store`` in it."""
    return None if given is None else str(store_folder(Path(given)))


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
