"""Topics: create, change, delete, order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from contrail.cli.exits import CommandFailed, NotFound
from contrail.cli.mqadmin.choosing import chosen_addresses, masters_of, on_each
from contrail.cli.mqadmin.java_text import topic_text, truth
from contrail.cli.mqadmin.options import Call, Command, may, need
from contrail.cli.mqadmin.topics import TOPIC
from contrail.client.blocking.admin import Admin
from contrail.errors import ConfigError, OptionInvalid
from contrail.model import fastjson
from contrail.model.fastjson import FastJsonError, Fields
from contrail.model.topic import AUTO_CREATE_TOPIC, TopicConfig
from contrail.protocol.codes import RequestCode
from contrail.protocol.json_style import encode_body

# The defaults of Apache's tool.
_QUEUE_COUNT = 8
_UNIT_FLAG = 1
_UNIT_SUBSCRIPTION_FLAG = 2
ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
_BROKER = may("b", "brokerAddr", "on this broker")
_CLUSTER = may("c", "clusterName", "on all masters of this cluster")
_PERM_HELP = "2 to write, 4 to read, 6 for both"


def update_topic(call: Call, admin: Admin) -> None:
    config = TopicConfig(
        call.text("t"),
        read_queue_count=call.number("r", _QUEUE_COUNT),
        write_queue_count=call.number("w", _QUEUE_COUNT),
        perm=call.number("p", 6),
        sys_flag=_UNIT_FLAG * call.truth("u") | _UNIT_SUBSCRIPTION_FLAG * call.truth("s"),
        order=call.truth("o"),
        attributes=read_attributes(call.maybe("a")),
    )

    def create(address: str) -> None:
        _set_topic(admin, address, config)
        print(f"create topic to {address} success.")

    on_each(chosen_addresses(call, admin), create)
    if config.order:
        _set_order(call, admin, config)
    print(topic_text(config))


def _set_topic(admin: Admin, address: str, config: TopicConfig) -> None:
    changes = [
        name if not value else f"{name}={value}" for name, value in config.attributes.items()
    ]
    fields = {
        "topic": config.topic,
        "defaultTopic": AUTO_CREATE_TOPIC,
        "readQueueNums": str(config.read_queue_count),
        "writeQueueNums": str(config.write_queue_count),
        "perm": str(int(config.perm)),
        "topicFilterType": config.filter_type,
        "topicSysFlag": str(config.sys_flag),
        "order": truth(config.order),
        "attributes": ",".join(changes),
    }
    admin.ask_broker(address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


def _set_order(call: Call, admin: Admin, config: TopicConfig) -> None:
    """``-b`` adds the broker to the present ones; ``-c`` replaces them by the cluster."""
    kind, counts = "cluster", {}
    if call.has("b"):
        kind, counts = "broker", admin.order_config(config.topic)
        names = [one.broker_name for one in admin.brokers() if one.address == call.text("b")]
    else:
        names = [one.broker_name for one in masters_of(admin, call.text("c"))]
    counts |= dict.fromkeys(names, config.write_queue_count)
    admin.set_order_config(config.topic, counts)
    said = ";".join(f"{name}:{config.write_queue_count}" for name in sorted(names))
    print(f"set {kind} orderConf. isOrder=true, orderConf=[{said}]")


def read_attributes(text: str | None) -> dict[str, str]:
    """``+a=b,+c=d,-e`` by name with its sign; a removed attribute has no value.

    Raises:
        OptionInvalid: a piece has another form, or comes twice.
    """
    found: dict[str, str] = {}
    for piece in (text or "").split(","):
        name, equals, value = piece.partition("=")
        if not piece:
            continue
        if name[:1] != ("+" if equals else "-") or name in found:
            raise OptionInvalid(f"attribute {piece!r}: write +name=value or -name, each once")
        found[name] = value
    return found


def update_topic_list(call: Call, admin: Admin) -> None:
    configs = [TopicConfig.from_fields(one, "") for one in read_list(call.text("f"), "a topic")]
    body = encode_body({"topicConfigList": [one.to_fields() for one in configs]})
    submit_list(call, admin, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body, "topic")


def read_list(path: str, what: str) -> list[Fields]:
    """The objects of a file with a JSON array.

    Raises:
        ConfigError: the file cannot be read, or holds something else.
    """
    try:
        value = fastjson.loads(Path(path).read_bytes())
        if not isinstance(value, list):
            raise FastJsonError("it holds no array")
        return [Fields(one, what) for one in value]
    except (OSError, FastJsonError) as error:
        raise ConfigError(f"-f {path}: {error}") from error


def submit_list(call: Call, admin: Admin, code: RequestCode, body: bytes, what: str) -> None:
    """Send a list of settings to the brokers that were chosen."""

    def submit(address: str) -> None:
        admin.ask_broker(address, code, {}, body)
        print(f"submit batch of {what} config to {address} success, please check the result later.")

    on_each(chosen_addresses(call, admin), submit)


def delete_topic(call: Call, admin: Admin) -> None:
    topic, cluster = call.text("t"), call.text("c")
    if topic not in admin.topics(cluster=cluster):
        raise NotFound(f"cluster {cluster!r} has no topic {topic!r}: correct its name")
    admin.delete_topic(topic, cluster=cluster)
    print(f"delete topic [{topic}] from cluster [{cluster}] success.")
    print(f"delete topic [{topic}] from NameServer success.")


def update_topic_perm(call: Call, admin: Admin) -> None:
    topic, perm = call.text("t"), call.number("p")
    known = admin.topic_config(topic)
    wanted = {one.address: one.broker_name for one in masters_of(admin, call.maybe("c"))}
    if call.has("b"):
        wanted = {place: name for place, name in wanted.items() if place == call.text("b")}
    wanted = {place: name for place, name in wanted.items() if name in known}
    if not wanted:
        raise NotFound(f"topic {topic!r} is on no master at {call.maybe('b') or call.text('c')}")
    if call.has("b") and {known[name].perm for name in wanted.values()} == {perm}:
        raise CommandFailed(f"topic {topic!r} has the permission {perm} already")

    def change(address: str) -> None:
        before = known[wanted[address]]
        _set_topic(admin, address, replace(before, perm=perm, attributes={}))
        print(f"update topic perm from {int(before.perm)} to {perm} in {address} success.")
        if call.has("b"):
            print(f"{topic_text(replace(before, perm=perm))}.")

    on_each(list(wanted), change)


def update_order_conf(call: Call, admin: Admin) -> None:
    topic, method = call.text("t"), call.text("m")
    if method == "get":
        value = admin.kv_get(ORDER_NAMESPACE, topic)
        if value is None:
            raise NotFound(f"topic {topic!r} has no order configuration: set one with -m put")
        print(f"get orderConf success. topic=[{topic}], orderConf=[{value}] ")
    elif method == "put":
        if not call.maybe("v"):
            raise ConfigError("mqadmin updateOrderConf: -m put needs -v, such as broker-a:4")
        admin.kv_put(ORDER_NAMESPACE, topic, call.text("v"))
        print(f"update orderConf success. topic=[{topic}], orderConf=[{call.text('v')}]")
    elif method == "delete":
        admin.kv_delete(ORDER_NAMESPACE, topic)
        print(f"delete orderConf success. topic=[{topic}]")
    else:
        raise OptionInvalid(f"-m {method!r} is none of put, get and delete")


COMMANDS = (
    Command(
        "updateTopic",
        "Create a topic, or set all of its settings.",
        update_topic,
        (
            _BROKER,
            _CLUSTER,
            TOPIC,
            may("a", "attributes", "changes of attributes, as +a=b,+c=d,-e"),
            may("r", "readQueueNums", "queues to read (8)"),
            may("w", "writeQueueNums", "queues to write (8)"),
            may("p", "perm", f"{_PERM_HELP} (6)"),
            may("o", "order", "true for a topic in order (false)"),
            may("u", "unit", "true for a unit topic (false)"),
            may("s", "hasUnitSub", "true when units subscribe to it (false)"),
        ),
        (106, 17, 100, 101),
        one_of=("b", "c"),
    ),
    Command(
        "updateTopicList",
        "Create the topics of a file, or set them.",
        update_topic_list,
        (_BROKER, _CLUSTER, need("f", "filename", "a JSON array of TopicConfig objects")),
        (106, 18),
        one_of=("b", "c"),
    ),
    Command(
        "deleteTopic",
        "Delete a topic with its messages.",
        delete_topic,
        (TOPIC, need("c", "clusterName", "from all brokers of this cluster")),
        (106, 224, 215, 216),
    ),
    Command(
        "updateTopicPerm",
        "Change whether a topic may be read and written.",
        update_topic_perm,
        (_BROKER, _CLUSTER, TOPIC, need("p", "perm", _PERM_HELP)),
        (105, 106, 351, 17),
        any_of=("b", "c"),
    ),
    Command(
        "updateOrderConf",
        "See, set or remove how many queues brokers have for ordered sends.",
        update_order_conf,
        (
            TOPIC,
            may("v", "orderConf", "for put, as broker-a:4;broker-b:4"),
            need("m", "method", "put, get or delete"),
        ),
        (100, 101, 102),
    ),
)
