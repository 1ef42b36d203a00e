"""``contrail tx``: transactions without a decision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from contrail.cli.completion import topic_names
from contrail.cli.exits import CommandFailed, NotFound
from contrail.cli.output import (
    AsJson,
    DryRun,
    Yes,
    agree,
    complain,
    print_json,
    print_rows,
    time_text,
)
from contrail.cli.target import ContextName, NameServers, open_admin
from contrail.cli.topic_facts import require_topic
from contrail.client.admin_values import OpenTransaction, TransactionPage
from contrail.client.blocking.admin import Admin
from contrail.errors import BrokerRefused
from contrail.protocol.codes import ResponseCode

app = typer.Typer(no_args_is_help=True, add_completion=False)

_PAGE = 100

TransactionId = Annotated[
    str, typer.Argument(metavar="ID", help="The transaction's id, or its message's.")
]


@app.callback()
def tx() -> None:
    """Open transactions of Contrail's brokers: list, commit, roll back."""


@app.command("list")
def list_transactions(
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            metavar="TOPIC",
            autocompletion=topic_names,
            help="Only transactions of this topic.",
        ),
    ] = None,
    count: Annotated[
        int,
        typer.Option("-c", "--count", min=1, help="The oldest of each broker, at most this many."),
    ] = 100,
    as_json: AsJson = False,
    namesrv: NameServers = None,
    ctx: ContextName = None,
) -> None:
    """List half messages whose producer has not decided, the oldest first."""
    with open_admin(namesrv, ctx) as admin:
        every = list(_open(admin, count))
        found = sorted(
            (one for one in every if topic is None or one.topic == topic),
            key=lambda one: one.born_ms,
        )
        if topic is not None and not found:
            require_topic(admin, topic)
    if as_json:
        print_json([_fields(one) for one in found])
        return
    rows = [_row(one) for one in found]
    print_rows(rows, list(rows[0]) if rows else [], empty="no transaction is open")


@app.command()
def commit(
    transaction_id: TransactionId,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    namesrv: NameServers = None,
    ctx: ContextName = None,
) -> None:
    """Decide a transaction: its message is delivered."""
    with open_admin(namesrv, ctx) as admin:
        one = _found(admin, transaction_id)
        agree([f"deliver {_named(one)}"], yes=yes, dry_run=dry_run, as_json=as_json)
        admin.commit_transaction(one.broker_name, one.transaction_id)
    _tell_decided(one, "committed", as_json=as_json)


@app.command()
def rollback(
    transaction_id: TransactionId,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    namesrv: NameServers = None,
    ctx: ContextName = None,
) -> None:
    """Decide a transaction: its message is dropped."""
    with open_admin(namesrv, ctx) as admin:
        one = _found(admin, transaction_id)
        agree([f"drop {_named(one)}"], yes=yes, dry_run=dry_run, as_json=as_json)
        admin.roll_back_transaction(one.broker_name, one.transaction_id)
    _tell_decided(one, "rolled back", as_json=as_json)


def _tell_decided(one: OpenTransaction, decision: str, *, as_json: bool) -> None:
    if not as_json:
        print(f"{decision}: {_named(one)}")
        return
    names = ("broker_name", "transaction_id", "topic", "producer_group", "message_id")
    print_json({**{name: getattr(one, name) for name in names}, "decision": decision})


def _open(admin: Admin, count: int | None = None) -> Iterator[OpenTransaction]:
    """The open transactions of all masters, the oldest ``count`` of each, or all."""
    for broker in admin.brokers():
        if broker.is_master:
            yield from _of_broker(admin, broker.broker_name, count)


def _of_broker(admin: Admin, broker_name: str, count: int | None) -> Iterator[OpenTransaction]:
    first = 0
    while count is None or first < count:
        wanted = _PAGE if count is None else min(_PAGE, count - first)
        page = _page(admin, broker_name, first, wanted)
        yield from page.transactions
        first += len(page.transactions)
        if not page.transactions or first >= page.total:
            return
    complain(f"broker {broker_name} has {page.total - first:,} more: see them with --count")


def _page(admin: Admin, broker_name: str, first: int, count: int) -> TransactionPage:
    try:
        return admin.transactions(broker_name, first=first, count_max=count)
    except BrokerRefused as refusal:
        if refusal.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        raise CommandFailed(
            f"broker {broker_name!r} does not tell its open transactions (LIST_TRANSACTIONS): only "
            "Contrail's brokers do; Apache's ask the producer, and give up after "
            "transactionCheckMax times"
        ) from refusal


def _found(admin: Admin, transaction_id: str) -> OpenTransaction:
    for one in _open(admin):
        if transaction_id in (one.transaction_id, one.message_id):
            return one
    raise NotFound(f"no transaction {transaction_id!r} is open: see `contrail tx list`")


def _named(one: OpenTransaction) -> str:
    return (
        f"transaction {one.transaction_id} of producer group {one.producer_group}, for topic "
        f"{one.topic} on broker {one.broker_name}"
    )


def _fields(one: OpenTransaction) -> dict[str, object]:
    fields = asdict(one)
    born_ms, next_check_ms = fields.pop("born_ms"), fields.pop("next_check_ms")
    return {
        **fields,
        "born_timestamp_ms": born_ms,
        "next_check_timestamp_ms": next_check_ms if next_check_ms >= 0 else None,
    }


def _row(one: OpenTransaction) -> dict[str, object]:
    return {
        "begun": time_text(one.born_ms),
        "age, s": one.age_ms // 1000,
        "topic": one.topic,
        "producer group": one.producer_group,
        "transaction id": one.transaction_id,
        "checks": one.check_count,
        "next check": time_text(one.next_check_ms),
        "broker": one.broker_name,
    }
