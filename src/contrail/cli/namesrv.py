"""``contrail namesrv``: runs a NameServer."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from contrail.cli.assignments import parse_pairs
from contrail.cli.logs import LogFormat, LogLevel, set_up_logs
from contrail.cli.open_files import limits_within, raise_open_files_limit
from contrail.cli.server_options import (
    ConfigFile,
    ListenAddress,
    LogFile,
    LogFormatOption,
    LogLevelOption,
    Port,
    PrintConfig,
    Settings,
    given,
    print_settings,
    read_properties,
)
from contrail.cli.serving import serve
from contrail.clock import clock_for
from contrail.nameserver.app import NameServer
from contrail.nameserver.config import NameServerConfig
from contrail.nameserver.settings import NameServerSettings, read_nameserver_settings
from contrail.wire.addresses import is_loopback

_log = logging.getLogger(__name__)
_KV_FILE = "kvConfig.json"
_CONFIG_FILE = "namesrv.properties"

app = typer.Typer(add_completion=False)

Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder", metavar="DIR", help="Where its two files are kept; by default ~/namesrv."
    ),
]


@app.command()
def namesrv(
    config: ConfigFile = None,
    folder: Folder = None,
    listen: ListenAddress = None,
    port: Port = None,
    settings: Settings = None,
    print_config: PrintConfig = False,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
    log_file: LogFile = None,
) -> None:
    """Run a NameServer: brokers register with it, clients ask it where topics are."""
    options = parse_pairs("--set", settings) | given(
        {"listenAddress": listen, "listenPort": port, **_files_in(folder)}
    )
    found, source = _gather(config, options)
    read = read_nameserver_settings(found)
    if print_config:
        print_settings(read.config.to_properties(), read.notes)
        return
    set_up_logs(style=log_format, level=log_level, path=log_file)
    for line in opening_lines(read, source):
        _log.info("%s", line)
    for warning in warnings(read):
        _log.warning("%s", warning)
    raise typer.Exit(serve(lambda: _nameserver(read), on_ready=_ready))


def _files_in(folder: Path | None) -> dict[str, Path]:
    if folder is None:
        return {}
    return {"kvConfigPath": folder / _KV_FILE, "configStorePath": folder / _CONFIG_FILE}


def _gather(config: Path | None, options: dict[str, str]) -> tuple[dict[str, str], Path | None]:
    """All properties, and the file that some came from.

    Settings changed while it runs are kept in that file, so a file that is there is read again
    at the next start.
    """
    if config is not None:
        return {"configStorePath": str(config)} | read_properties(config) | options, config
    kept = read_nameserver_settings(options).config.config_store_path
    if not kept.exists():
        return options, None
    return read_properties(kept) | {"configStorePath": str(kept)} | options, kept


def _nameserver(read: NameServerSettings) -> NameServer:
    return NameServer(
        read.config,
        clock=clock_for(os.environ),
        limits=limits_within(raise_open_files_limit()),
        tls_mode=read.tls_mode,
        tls_files=read.tls_files,
    )


def _ready(nameserver: NameServer) -> None:
    typer.echo(f"contrail namesrv is ready at {nameserver.address}")


def opening_lines(read: NameServerSettings, source: Path | None) -> list[str]:
    """Log lines for the operator before the start."""
    config = read.config
    return [
        f"settings: {source or 'defaults and the command line'}",
        f"listening address: {config.listen_address}, port {config.listen_port or 'any free one'}",
        f"files: {config.kv_config_path} and {config.config_store_path}",
        f"TLS: {read.tls_mode.value}",
    ]


def warnings(read: NameServerSettings) -> list[str]:
    """Warnings for the operator."""
    return [*read.notes, *exposure_warnings(read.config)]


def exposure_warnings(config: NameServerConfig) -> list[str]:
    """The permissions of other hosts that reach this NameServer."""
    if is_loopback(config.listen_address):
        return []
    brokers = (
        f"brokers register from this host and from {config.cluster_allow_list}"
        if config.cluster_allow_list
        else "brokers register from this host only: contrailClusterAllowList names other networks"
    )
    return [
        f"{config.listen_address} is reached from other hosts and there is no access control: "
        f"anybody there may look up routes; administration is refused to them; {brokers}"
    ]
