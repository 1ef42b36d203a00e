"""The cluster that a command works on, and the clients it opens there.

The stronger first: ``--namesrv``, ``--ctx``, the environment, the context in use, the default.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from contrail.cli.contexts import Context, contexts_path, load_contexts
from contrail.client.blocking.admin import Admin
from contrail.client.settings import NAMESRV_VARIABLE
from contrail.errors import ConfigError
from contrail.wire.addresses import split_address

DEFAULT_NAMESRV = "127.0.0.1:9876"
# Names of its own, so that a command never shares a client with a program of the same process.
_INSTANCE = "contrail-cli"

NameServers = Annotated[
    str | None,
    typer.Option(
        "-n",
        "--namesrv",
        metavar="ADDRESSES",
        help="NameServers, as host:port;host:port; else those of --ctx, "
        f"{NAMESRV_VARIABLE}, the context in use, or {DEFAULT_NAMESRV}.",
    ),
]
ContextName = Annotated[
    str | None,
    typer.Option("--ctx", metavar="NAME", help="A cluster named by `contrail ctx add`."),
]


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster, and how it is spoken to."""

    namesrv: str
    tls: bool | ssl.SSLContext = False
    # The file behind ``tls``, for programs that make a context of their own.
    tls_ca: str | None = None

    def client_options(self) -> dict[str, Any]:
        """Keyword arguments for any client of ours."""
        return {"tls": self.tls, "instance_name": f"{_INSTANCE}-{os.getpid()}"}

    def admin(self, *, timeout_ms: int = 5_000) -> Admin:
        return Admin(self.namesrv, timeout_ms=timeout_ms, **self.client_options())


def target(namesrv: str | None, context: str | None) -> Target:
    """The cluster that the options, the environment or the context in use name.

    Raises:
        NotFound: there is no such context.
        ConfigError: both are given, or the file of contexts cannot be used.
    """
    if namesrv is not None and context is not None:
        raise ConfigError("--namesrv and --ctx: give one of the two")
    if namesrv is not None:
        return Target(_addresses("--namesrv", namesrv))
    if context is not None:
        return _target_of(context, load_contexts(contexts_path()).named(context))
    if os.environ.get(NAMESRV_VARIABLE):
        return Target(_addresses(NAMESRV_VARIABLE, os.environ[NAMESRV_VARIABLE]))
    contexts = load_contexts(contexts_path())
    if contexts.current is not None:
        return _target_of(contexts.current, contexts.by_name[contexts.current])
    return Target(DEFAULT_NAMESRV)


def open_admin(namesrv: str | None, context: str | None = None) -> Admin:
    """An admin client of the chosen cluster."""
    return target(namesrv, context).admin()


def _addresses(origin: str, text: str) -> str:
    """The addresses as they are; if they are invalid, the error names their ``origin``."""
    pieces = [piece.strip() for piece in text.replace(",", ";").split(";") if piece.strip()]
    if not pieces:
        raise ConfigError(
            f"{origin} {text!r} has no address: write host:port, as {DEFAULT_NAMESRV}"
        )
    for piece in pieces:
        try:
            split_address(piece)
        except ValueError as error:
            raise ConfigError(f"{origin}: {error}") from error
    return text


def _target_of(name: str, context: Context) -> Target:
    namesrv = _addresses(f"context {name}", context.namesrv)
    if context.tls_ca is None:
        return Target(namesrv, context.tls)
    try:
        tls = ssl.create_default_context(cafile=context.tls_ca)
        return Target(namesrv, tls, context.tls_ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls_ca {context.tls_ca}: {error}") from error
