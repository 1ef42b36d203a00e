"""Open transactions of Contrail's brokers, the oldest first; Apache's brokers tell none."""

from __future__ import annotations

from contrail.client.admin import Admin
from contrail.client.admin_values import OpenTransaction
from contrail.errors import BrokerRefused, ClientError, NotOnCluster
from contrail.protocol.codes import ResponseCode

_PAGE = 100
# Half messages that a search for one of them looks at.
_SEARCHED_MAX = 10_000


async def open_transactions(
    admin: Admin, count_max: int
) -> tuple[list[OpenTransaction], int, dict[str, str]]:
    """The oldest of each broker, the count of all, and what the other brokers said."""
    found: list[OpenTransaction] = []
    total = 0
    errors: dict[str, str] = {}
    for broker in await admin.brokers():
        if not broker.is_master:
            continue
        try:
            page = await admin.transactions(broker.broker_name, count_max=count_max)
        except BrokerRefused as refusal:
            errors[broker.broker_name] = (
                "this broker does not tell its open transactions"
                if refusal.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                else str(refusal)
            )
            continue
        except ClientError as error:
            errors[broker.broker_name] = str(error)
            continue
        found += page.transactions
        total += page.total
    return sorted(found, key=lambda one: one.born_ms)[:count_max], total, errors


async def open_transaction(admin: Admin, broker: str, transaction_id: str) -> OpenTransaction:
    """Raises ``NotOnCluster`` when it is not open any more."""
    first = 0
    while first < _SEARCHED_MAX:
        page = await admin.transactions(broker, first=first, count_max=_PAGE)
        for one in page.transactions:
            if transaction_id in (one.transaction_id, one.message_id):
                return one
        first += _PAGE
        if first >= page.total:
            break
    raise NotOnCluster(f"no transaction {transaction_id!r} is open on {broker}: it may be decided")
