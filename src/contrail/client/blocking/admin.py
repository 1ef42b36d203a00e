"""The blocking admin client."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from contrail.client.admin import Admin as AsyncAdmin
from contrail.client.blocking.admin_calls import AdminCalls
from contrail.client.settings import DEFAULT_INSTANCE
from contrail.protocol.signing import CredentialSource

T = TypeVar("T")
P = ParamSpec("P")


class Admin(AdminCalls):
    """Looks at a cluster and changes it. Use it in ``with``, or ``start`` and ``close``."""

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        timeout_ms: int = 5_000,
        instance_name: str = DEFAULT_INSTANCE,
        unit_name: str | None = None,
        client_ip: str | None = None,
        tls: bool | ssl.SSLContext = False,
        credentials: CredentialSource | None = None,
    ) -> None:
        super().__init__(
            AsyncAdmin(
                namesrv,
                timeout_ms=timeout_ms,
                instance_name=instance_name,
                unit_name=unit_name,
                client_ip=client_ip,
                tls=tls,
                credentials=credentials,
            )
        )

    def run(
        self,
        work: Callable[Concatenate[AsyncAdmin, P], Coroutine[Any, Any, T]],
        /,
        *given: P.args,
        **named: P.kwargs,
    ) -> T:
        """Wait for a coroutine function that takes the asyncio admin client, such as insight's."""
        return self._run(work, self._twin, *given, **named)

    @property
    def name_servers(self) -> tuple[str, ...]:
        return self._twin.name_servers
