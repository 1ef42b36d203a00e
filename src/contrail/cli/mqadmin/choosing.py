"""The brokers of ``-b`` and ``-c``, and running a request on each of them."""

from __future__ import annotations

from collections.abc import Callable

from contrail.cli.exits import CommandFailed, ExitCode, exit_code_of
from contrail.cli.mqadmin.options import Call
from contrail.client.admin_values import BrokerAddress
from contrail.client.blocking.admin import Admin
from contrail.errors import ClientError


def masters_of(admin: Admin, cluster: str | None) -> list[BrokerAddress]:
    return [one for one in admin.brokers(cluster=cluster) if one.is_master]


def chosen_addresses(call: Call, admin: Admin) -> list[str]:
    """The broker of ``-b``, else the masters of the cluster of ``-c``."""
    broker = call.maybe("b")
    if broker is not None:
        return [broker]
    return [one.address for one in masters_of(admin, call.text("c"))]


def on_each(addresses: list[str], work: Callable[[str], None]) -> None:
    """Run a request on all brokers, whichever fail.

    Raises:
        CommandFailed: several brokers were asked and not all succeeded.
        ClientError: the only broker failed, or all answer that the thing does not exist.
    """
    failures: list[ClientError] = []
    for address in addresses:
        try:
            work(address)
        except ClientError as error:
            failures.append(error)
    if not failures:
        return
    is_absent = all(exit_code_of(error) is ExitCode.NOT_FOUND for error in failures)
    if len(addresses) == 1 or (is_absent and len(failures) == len(addresses)):
        # No broker has it, and all refused in the same words.
        raise failures[0]
    told = "; ".join(str(error) for error in failures)
    raise CommandFailed(f"{len(failures)} of {len(addresses)} brokers failed: {told}")
