"""NameServers: settings, the table of keys and values, draining a broker."""

from __future__ import annotations

from contrail.cli.exits import NotFound
from contrail.cli.mqadmin.options import Call, Command, need
from contrail.client.blocking.admin import Admin

_NAMESPACE = need("s", "namespace", "the namespace")
_KEY = need("k", "key", "the key")
_BROKER = need("b", "brokerName", "broker name")


def get_namesrv_config(call: Call, admin: Admin) -> None:
    for server, settings in admin.namesrv_config().items():
        print(f"============{server}============")
        for name, value in sorted(settings.items()):
            print(f"{name:<50}=  {value}")


def update_namesrv_config(call: Call, admin: Admin) -> None:
    key, value = call.text("k"), call.text("v")
    admin.update_namesrv_config({key: value})
    servers = f"[{', '.join(admin.name_servers)}]"
    print(f"update name server config success!{servers}\n{key} : {value}")


def update_kv_config(call: Call, admin: Admin) -> None:
    admin.kv_put(call.text("s"), call.text("k"), call.text("v"))
    print("create or update kv config to namespace success.")


def delete_kv_config(call: Call, admin: Admin) -> None:
    namespace, key = call.text("s"), call.text("k")
    if admin.kv_get(namespace, key) is None:
        raise NotFound(f"namespace {namespace!r} has no key {key!r}: correct them")
    admin.kv_delete(namespace, key)
    print("delete kv config from namespace success.")


def wipe_write_perm(call: Call, admin: Admin) -> None:
    name = call.text("b")
    for server, count in admin.wipe_write_perm(name).items():
        print(f"wipe write perm of broker[{name}] in name server[{server}] OK, {count}")


def add_write_perm(call: Call, admin: Admin) -> None:
    name = call.text("b")
    for server, count in admin.add_write_perm(name).items():
        print(f"add write perm of broker[{name}] in name server[{server}] OK, {count}")


COMMANDS = (
    Command(
        "getNamesrvConfig", "The settings of every NameServer.", get_namesrv_config, (), (319,)
    ),
    Command(
        "updateNamesrvConfig",
        "Change a setting of every NameServer.",
        update_namesrv_config,
        (need("k", "key", "the setting's name"), need("v", "value", "its value")),
        (318,),
    ),
    Command(
        "updateKvConfig",
        "Set a value in the NameServers' table.",
        update_kv_config,
        (_NAMESPACE, _KEY, need("v", "value", "the value")),
        (100,),
    ),
    Command(
        "deleteKvConfig",
        "Remove a value from the NameServers' table.",
        delete_kv_config,
        (_NAMESPACE, _KEY),
        (101, 102),
    ),
    Command(
        "wipeWritePerm",
        "Tell producers not to send to a broker.",
        wipe_write_perm,
        (_BROKER,),
        (106, 205),
    ),
    Command(
        "addWritePerm",
        "Let producers send to a broker again.",
        add_write_perm,
        (_BROKER,),
        (106, 327),
    ),
)
