"""``contrail console``: the web console, and its accounts."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contrail.cli.logs import LogLevel, set_up_logs
from contrail.cli.output import AsJson, print_json, print_rows
from contrail.cli.server_options import LogLevelOption
from contrail.cli.target import ContextName, NameServers, target
from contrail.errors import ConfigError, OptionInvalid

if TYPE_CHECKING:
    from contrail.console.app import Console
    from contrail.console.services.accounts import Accounts

_PASSWORD_VARIABLE = "CONTRAIL_CONSOLE_PASSWORD"
_PORT = 9870

app = typer.Typer(add_completion=False, invoke_without_command=True)
user = typer.Typer(no_args_is_help=True, add_completion=False)
app.add_typer(user, name="user")

Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        metavar="DIR",
        help="Keeps the accounts and the audit log; else ~/.local/state/contrail-console.",
    ),
]
Role = Annotated[
    str, typer.Option("--role", metavar="ROLE", help="viewer, reader, operator or admin.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The account's name.")]


def _default_folder() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "contrail-console"


@app.callback()
def console(
    context: typer.Context,
    namesrv: NameServers = None,
    ctx: ContextName = None,
    folder: Folder = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="ADDR", help="The address to bind to.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, help="The port; 0 takes a free one.")
    ] = _PORT,
    public_url: Annotated[
        str | None,
        typer.Option("--public-url", metavar="URL", help="The address that browsers see."),
    ] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy in front speaks TLS.")
    ] = False,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate chain, PEM.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="Its key, PEM.")
    ] = None,
    interval: Annotated[
        float,
        typer.Option(
            "--interval", metavar="SECONDS", min=1.0, help="Between two samples of the cluster."
        ),
    ] = 10.0,
    mask: Annotated[
        list[str] | None,
        typer.Option(
            "--mask",
            metavar="PATH",
            help="Hide this part of JSON bodies from all but admins: $.card; repeatable.",
        ),
    ] = None,
    as_json: AsJson = False,
    log_level: LogLevelOption = LogLevel.WARNING,
) -> None:
    """Serve the console of a cluster; Ctrl-C ends it. The first start prints a password, once."""
    if context.invoked_subcommand is not None:
        return
    set_up_logs(level=log_level)
    require_parts()
    from contrail.cli.serving import serve
    from contrail.client.admin import Admin
    from contrail.clock import SystemClock
    from contrail.console.app import Console
    from contrail.console.config import ConsoleConfig

    chosen = target(namesrv, ctx)
    admin = Admin(chosen.namesrv, **chosen.client_options())
    config = ConsoleConfig(
        folder=folder or _default_folder(),
        listen_address=listen,
        port=port,
        public_url=public_url,
        behind_proxy=behind_proxy,
        tls_certificate=tls_cert,
        tls_key=tls_key,
        sample_interval_s=interval,
        masks=_masks(mask or []),
    )
    raise typer.Exit(
        serve(
            lambda: Console(config, clock=SystemClock(), admin=admin, **chosen.client_options()),
            on_ready=_ready_json if as_json else _ready_text,
        )
    )


def _masks(texts: list[str]) -> tuple[tuple[str, ...], ...]:
    from contrail.console.state.masks import MaskInvalid, parse_path

    try:
        return tuple(map(parse_path, texts))
    except MaskInvalid as error:
        raise OptionInvalid(f"--mask: {error}") from error


def require_parts() -> None:
    """Raises ``ConfigError`` where the extra is not installed."""
    try:
        import msgspec  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"the console needs {error.name}: pip install 'contrail-mq[console]'"
        ) from error


def _ready_json(console: Console) -> None:
    print_json({"url": console.url, "first_password": console.first_password, "pid": os.getpid()})


def _ready_text(console: Console) -> None:
    print(f"contrail console serves {console.url}; Ctrl-C ends it", flush=True)
    if console.first_password is not None:
        print(f"account admin, password {console.first_password} (told this once)", flush=True)


# Accounts.


def _accounts(folder: Path | None) -> Accounts:
    require_parts()
    from contrail.console.services.accounts import Accounts

    chosen = folder or _default_folder()
    chosen.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Accounts(chosen / "accounts.json")


@user.callback()
def users() -> None:
    """Accounts of the console: list, add, remove, tokens for scripts."""


@user.command("list")
def list_users(folder: Folder = None, as_json: AsJson = False) -> None:
    """List the accounts and their roles."""
    roles = _accounts(folder).roles()
    rows = [{"account": name, "role": role.word} for name, role in roles.items()]
    if as_json:
        print_json(rows)
    else:
        print_rows(rows, ["account", "role"], empty="there are no accounts")


@user.command()
def add(name: Name, role: Role, folder: Folder = None, as_json: AsJson = False) -> None:
    """Add an account, or give one a new role and password; a running console takes it at once.

    The password is that of CONTRAIL_CONSOLE_PASSWORD; else one is made and printed, this once.
    """
    accounts = _accounts(folder)
    from contrail.console.state.roles import Role as ConsoleRole

    try:
        wanted = ConsoleRole.of(role)
    except ValueError as error:
        raise OptionInvalid(f"--role: {error}") from error
    given = os.environ.get(_PASSWORD_VARIABLE)
    password = given or secrets.token_urlsafe(15)
    accounts.put(name, wanted, password)
    if as_json:
        print_json({"account": name, "role": wanted.word, "password": None if given else password})
    elif given:
        print(f"account {name} is a {wanted.word}")
    else:
        print(f"account {name} is a {wanted.word}, password {password} (told this once)")


@user.command()
def remove(name: Name, folder: Folder = None) -> None:
    """Remove an account; its sessions and its token end with it."""
    _accounts(folder).remove(name)
    print(f"account {name} is removed")


@user.command()
def token(name: Name, folder: Folder = None) -> None:
    """Print a new token for scripts, in place of the account's last one."""
    print(_accounts(folder).new_token(name))
