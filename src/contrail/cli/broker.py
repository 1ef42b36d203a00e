"""``contrail broker``: runs a broker; its commands look after running ones."""

from __future__ import annotations

import dataclasses
import ipaddress
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from contrail.broker.access_config import access_warnings, shown_properties
from contrail.broker.app import Broker
from contrail.broker.replication_config import replication_warnings
from contrail.broker.settings import BrokerSettings, read_broker_settings
from contrail.cli.assignments import parse_pairs
from contrail.cli.broker_admin import config as config_command
from contrail.cli.broker_admin import status
from contrail.cli.broker_drain import drain, undrain
from contrail.cli.logs import LogFormat, LogLevel, set_up_logs
from contrail.cli.open_files import limits_within, raise_open_files_limit, store_within
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
from contrail.errors import ConfigError
from contrail.model.settings import properties_of
from contrail.wire.addresses import is_loopback, is_wildcard, outgoing_address
from contrail.wire.server import FAST_PORT_DISTANCE

_log = logging.getLogger(__name__)

app = typer.Typer(add_completion=False)

NameServers = Annotated[
    str | None,
    typer.Option("-n", "--namesrv", metavar="ADDR", help="NameServers, as host:port;host:port."),
]
Folder = Annotated[
    Path | None,
    typer.Option("--folder", metavar="DIR", help="The store; by default ~/store."),
]


class Advertised(NamedTuple):
    """The address that clients are sent to, and why it is this one."""

    address: str
    reason: str


@app.callback(invoke_without_command=True)
def broker(
    ctx: typer.Context,
    config: ConfigFile = None,
    namesrv: NameServers = None,
    folder: Folder = None,
    listen: ListenAddress = None,
    port: Port = None,
    settings: Settings = None,
    print_config: PrintConfig = False,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
    log_file: LogFile = None,
) -> None:
    """Run a broker: it stores messages and hands them out. Or look after running brokers."""
    if ctx.invoked_subcommand is not None:
        _require_nothing_given(ctx, ctx.invoked_subcommand)
        return
    options = given(
        {
            "namesrvAddr": namesrv,
            "storePathRootDir": folder,
            "listenAddress": listen,
            "listenPort": port,
        }
    )
    found = {
        **default_properties(os.environ),
        **(read_properties(config) if config is not None else {}),
        **parse_pairs("--set", settings),
        **options,
    }
    read, advertised = read_with_address(found, outgoing_address)
    if print_config:
        print_settings(all_properties(read), [*read.notes, *read.moved])
        return
    set_up_logs(style=log_format, level=log_level, path=log_file)
    for line in opening_lines(read, advertised, config):
        _log.info("%s", line)
    for warning in warnings(read):
        _log.warning("%s", warning)
    raise typer.Exit(
        serve(
            lambda: _broker(read),
            on_ready=_ready,
            failed_event=lambda made: made.failed,
            abandon=lambda made: made.abandon_start(),
            begins_anew=lambda made: made.replicas.begins_anew,
        )
    )


app.command()(status)
app.command("config")(config_command)
app.command()(drain)
app.command()(undrain)


def _require_nothing_given(ctx: typer.Context, command: str) -> None:
    """Refuse a flag before a command: it is a flag of the broker that is not run then."""
    given_names = [
        str(parameter.opts[-1])
        for parameter in ctx.command.params
        if _is_given(ctx, str(parameter.name))
    ]
    if given_names:
        raise ConfigError(f"{given_names[0]} must stand behind `contrail broker {command}`")


def _is_given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def default_properties(environment: Mapping[str, str]) -> dict[str, str]:
    """Defaults that RocketMQ's broker has, too."""
    properties = {"storePathRootDir": str(Path.home() / "store")}
    if name_servers := environment.get("NAMESRV_ADDR"):
        properties["namesrvAddr"] = name_servers
    return properties


def read_with_address(
    properties: Mapping[str, str], outgoing: Callable[[str], str | None]
) -> tuple[BrokerSettings, Advertised]:
    """The settings with the address that clients are sent to.

    Raises:
        ConfigError: a setting is refused, or no such address can be found.
    """
    read = read_broker_settings(properties)
    is_set = "brokerIP1" in properties
    advertised = advertise(read.broker.listen_address, read.broker.broker_ip, is_set, outgoing)
    _require_ip(advertised.address)
    config = dataclasses.replace(read.broker, broker_ip=advertised.address)
    return read._replace(broker=config), advertised


def advertise(
    listen_address: str, broker_ip: str, is_set: bool, outgoing: Callable[[str], str | None]
) -> Advertised:
    """Choose the address that clients are sent to.

    Raises:
        ConfigError: the broker listens on all addresses and none leads anywhere.
    """
    if is_set:
        return Advertised(broker_ip, "brokerIP1 is set")
    if is_loopback(listen_address):
        return Advertised(broker_ip, "only this host is listened to: set listenAddress for others")
    if not is_wildcard(listen_address):
        return Advertised(listen_address, "it is the one listened on; brokerIP1 is not set")
    chosen = outgoing(listen_address)
    if chosen is None:
        raise ConfigError(
            f"listenAddress={listen_address} is no address that clients can be sent to, and no "
            "route leads out of this host: set brokerIP1"
        )
    return Advertised(chosen, "outgoing traffic leaves by it; set brokerIP1 for another")


def _require_ip(address: str) -> None:
    """Messages carry the broker's address in binary, so a name will not do."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise ConfigError(
            f"{address!r} is no IP address: set brokerIP1 to the one clients shall connect to"
        ) from None


def opening_lines(read: BrokerSettings, advertised: Advertised, source: Path | None) -> list[str]:
    """Log lines for the operator before the start."""
    config, store = read.broker, read.store
    port = config.listen_port
    ports = f"port {port}, fast port {port - FAST_PORT_DISTANCE}" if port else "any free ports"
    return [
        f"broker {config.broker_name} of {config.cluster_name}, id {_id(read)}",
        f"role: {_role(read)}",
        f"settings: {source or 'defaults and the command line'}",
        f"advertised address: {advertised.address} ({advertised.reason})",
        f"listening address: {config.listen_address}, {ports}",
        f"store: {store.root}",
        f"flush: {store.flush_disk_type.value} ({_FLUSH_MEANING[store.syncs_before_ack]})",
        f"NameServers: {config.name_servers or 'none'}",
        f"TLS: {read.tls_mode.value}",
        *_replication_lines(read),
    ]


def _id(read: BrokerSettings) -> str:
    if not read.replication.in_group:
        return str(read.broker.broker_id)
    return f"{read.replication.group_members.broker_id}, or 0 while it leads"


def _role(read: BrokerSettings) -> str:
    if not read.replication.in_group:
        return read.broker.role.value
    members = read.replication.group_members
    return f"member {members.self_id} of a failover group of {len(members.addresses)}"


def _replication_lines(read: BrokerSettings) -> list[str]:
    """Where slaves or members come in, or where a slave looks for its master."""
    replication = read.replication
    if replication.in_group:
        return [f"port for members: {replication.group_members.port}"]
    if not replication.admits_peers:
        return []
    if not read.broker.role.leads:
        told = replication.fixed_master_address
        return [f"master: {f'{told} (haMasterAddress)' if told else 'the NameServers name it'}"]
    main = read.broker.listen_port
    port = replication.ha_port(main) if main or replication.listen_port else "a free one"
    return [f"port for slaves: {port}"]


_FLUSH_MEANING = {
    True: "a message is acknowledged once it is on the disk",
    False: "acknowledged messages of the last moments are lost when the host loses power",
}


def warnings(read: BrokerSettings) -> list[str]:
    """Warnings for the operator."""
    config = read.broker
    found = [
        *read.notes,
        *read.moved,
        *replication_warnings(read.replication, config.role),
        *access_warnings(read.access, config, read.tls_mode),
    ]
    if not config.name_servers:
        found.append(
            "no NameServer is named: clients find this broker only after -n or namesrvAddr"
        )
    if is_loopback(config.listen_address) and not is_loopback(config.broker_ip):
        found.append(
            f"clients are sent to {config.broker_ip} but only {config.listen_address} is listened "
            "on: set listenAddress too"
        )
    if not is_loopback(config.listen_address) and not read.access.is_on:
        found.append(
            f"{config.listen_address} is reached from other hosts and there is no access control: "
            "anybody there may send and read messages; administration is refused to them"
        )
    return found


def all_properties(read: BrokerSettings) -> dict[str, str]:
    """Every setting by RocketMQ's name, as ``-c`` reads it back."""
    return {
        **properties_of(read.broker),
        **properties_of(read.store),
        **properties_of(read.replication),
        **shown_properties(read.access),
    }


def _broker(read: BrokerSettings) -> Broker:
    open_files = raise_open_files_limit()
    store = store_within(read.store, open_files)
    return Broker(
        read.broker,
        store,
        clock=clock_for(os.environ),
        limits=limits_within(open_files, store_open_files_max=store.open_files_max),
        tls_mode=read.tls_mode,
        tls_files=read.tls_files,
        replication=read.replication,
        access=read.access,
    )


def _ready(broker: Broker) -> None:
    if broker.first_user is not None:
        name, password = broker.first_user
        typer.echo(f"the first user is {name!r} with the password {password}: shown only now")
    typer.echo(f"contrail broker is ready at {broker.address}")
