"""Options that filter messages at the broker."""

from __future__ import annotations

from typing import Annotated

import typer

from contrail.cli.sql_words import in_plain_words, sql_problem
from contrail.client.subscriptions import Sql92
from contrail.errors import BrokerRefused, ConfigError
from contrail.model.subscription import ALL_TAGS

Tags = Annotated[
    str | None, typer.Option("--tags", metavar="TAGS", help="Only these tags, as 'a||b'.")
]
Sql = Annotated[
    str | None,
    typer.Option(
        "--sql",
        metavar="EXPRESSION",
        help="Only messages whose properties fit, as \"price > 3 AND region = 'eu'\"; "
        "the broker needs enablePropertyFilter=true.",
    ),
]


def expression_of(tags: str | None, sql: str | None) -> str | Sql92:
    """The filter that the options name.

    Raises:
        ConfigError: both are given, one is blank, or brokers would not understand the expression.
    """
    if tags is not None and sql is not None:
        raise ConfigError("--tags and --sql: give one of the two")
    for option, text in (("--tags", tags), ("--sql", sql)):
        if text is not None and not text.strip():
            raise ConfigError(f"{option} is blank: leave it out for all messages")
    problem = None if sql is None else sql_problem(sql)
    if problem is not None:
        raise ConfigError(f"--sql {sql!r}: {problem}")
    return Sql92(sql) if sql is not None else tags or ALL_TAGS


def no_expression(expression: Sql92, refusal: BrokerRefused) -> ConfigError:
    """The error for an SQL expression that a broker refuses."""
    reason = in_plain_words(refusal.remark or str(refusal))
    return ConfigError(f"--sql {expression.expression!r} is not taken by the broker: {reason}")
