"""Consumer groups: create, change, delete, how they consume."""

from __future__ import annotations

from contrail.cli.group_facts import require_group
from contrail.cli.mqadmin.choosing import chosen_addresses, on_each
from contrail.cli.mqadmin.java_text import group_facts, group_text, truth, value_text
from contrail.cli.mqadmin.options import Call, Command, may, need
from contrail.cli.mqadmin.topic_changes import read_attributes, read_list, submit_list
from contrail.client.blocking.admin import Admin
from contrail.errors import OptionInvalid
from contrail.model import fastjson
from contrail.model.fastjson import FastJsonError, Fields
from contrail.model.group import GroupRetryPolicy, SubscriptionGroupConfig
from contrail.model.topic import dlq_topic, retry_topic
from contrail.protocol.codes import RequestCode
from contrail.protocol.json_style import encode_body

_BROKER = may("b", "brokerAddr", "on this broker")
_CLUSTER = may("c", "clusterName", "on all masters of this cluster")
_GROUP = need("g", "groupName", "consumer group name")
_MODES = ("PULL", "POP")


def update_sub_group(call: Call, admin: Admin) -> None:
    default = SubscriptionGroupConfig(call.text("g"))
    config = SubscriptionGroupConfig(
        default.group,
        consume_enable=call.truth("s", default.consume_enable),
        # Apache's tool turns these two off by default.
        consume_from_min_enable=call.truth("m"),
        consume_broadcast_enable=call.truth("d"),
        consume_message_orderly=call.truth("o"),
        retry_queue_count=call.number("q", default.retry_queue_count),
        retry_count_max=call.number("r", default.retry_count_max),
        retry_policy=_read_policy(call.maybe("p")),
        broker_id=call.number("i", default.broker_id),
        broker_id_when_slow=call.number("w", default.broker_id_when_slow),
        notify_consumer_ids_changed_enable=call.truth("a", True),
        attributes=read_attributes(call.maybe("attributes")),
    )
    body = encode_body(config.to_fields())

    def create(address: str) -> None:
        admin.ask_broker(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
        print(f"create subscription group to {address} success.")

    on_each(chosen_addresses(call, admin), create)
    print(group_text(config))


def _read_policy(text: str | None) -> GroupRetryPolicy:
    if text is None:
        return GroupRetryPolicy()
    try:
        return GroupRetryPolicy.from_fields(Fields(fastjson.loads(text.encode()), "a retry policy"))
    except FastJsonError as error:
        raise OptionInvalid(f"-p {text!r}: {error}") from error


def update_sub_group_list(call: Call, admin: Admin) -> None:
    read = read_list(call.text("f"), "a group")
    configs = [SubscriptionGroupConfig.from_fields(one, "") for one in read]
    body = encode_body({"groupConfigList": [one.to_fields() for one in configs]})
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    submit_list(call, admin, code, body, "subscription group")


def delete_sub_group(call: Call, admin: Admin) -> None:
    group, cluster = call.text("g"), call.maybe("c")
    require_group(admin, group, may_be_made=False)
    fields = {"groupName": group, "cleanOffset": truth(call.truth("r"))}
    where = "" if call.has("b") else f" in cluster [{cluster}]"

    def delete(address: str) -> None:
        admin.ask_broker(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
        print(f"delete subscription group [{group}] from broker [{address}]{where} success.")

    on_each(chosen_addresses(call, admin), delete)
    if call.has("b") or cluster is None:
        return
    topics = set(admin.topics(cluster=cluster)) & {retry_topic(group), dlq_topic(group)}
    for topic in sorted(topics):
        admin.delete_topic(topic, cluster=cluster)


def get_consumer_config(call: Call, admin: Admin) -> None:
    group = call.text("g")
    require_group(admin, group, may_be_made=False)
    clusters = {one.broker_name: one.cluster for one in admin.brokers()}
    for broker, config in sorted(admin.group_config(group).items()):
        rule = "=" * 29
        print(f"{rule}{clusters[broker]}:{broker}{rule}")
        for name, value in group_facts(config).items():
            print(f"{name:<40}=  {'' if value is None else value_text(value)}")


def set_consume_mode(call: Call, admin: Admin) -> None:
    topic, group, mode = call.text("t"), call.text("g"), call.text("m")
    if mode not in _MODES:
        raise OptionInvalid(f"-m {mode!r} is neither PULL nor POP")
    share_count = call.number("q")
    body = encode_body(
        {"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": share_count}
    )

    def change(address: str) -> None:
        admin.ask_broker(address, RequestCode.SET_MESSAGE_REQUEST_MODE, {}, body)
        print(f"set consume mode to {address} success.")

    on_each(chosen_addresses(call, admin), change)
    print(f"topic[{topic}] group[{group}] consume mode[{mode}] popShareQueueNum[{share_count}]")


COMMANDS = (
    Command(
        "updateSubGroup",
        "Create a consumer group, or set all of its settings.",
        update_sub_group,
        (
            _BROKER,
            _CLUSTER,
            _GROUP,
            may("s", "consumeEnable", "whether it may consume (true)"),
            may("m", "consumeFromMinEnable", "whether it may begin at the oldest message (false)"),
            may("d", "consumeBroadcastEnable", "whether it may broadcast (false)"),
            may("o", "consumeMessageOrderly", "whether it consumes in order (false)"),
            may("q", "retryQueueNums", "queues of its retry topic (1)"),
            may("r", "retryMaxTimes", "how often a message is tried again (16)"),
            may("p", "groupRetryPolicy", "the retry policy, as JSON"),
            may("i", "brokerId", "the broker id it reads from (0)"),
            may("w", "whichBrokerWhenConsumeSlowly", "the broker id when it is slow (1)"),
            may("a", "notifyConsumerIdsChanged", "tell members of joins and leaves (true)"),
            may(None, "attributes", "changes of attributes, as +a=b,+c=d,-e"),
        ),
        (106, 200),
        any_of=("b", "c"),
    ),
    Command(
        "updateSubGroupList",
        "Create the consumer groups of a file, or set them.",
        update_sub_group_list,
        (
            _BROKER,
            _CLUSTER,
            need("f", "filename", "a JSON array of SubscriptionGroupConfig objects"),
        ),
        (106, 225),
        one_of=("b", "c"),
    ),
    Command(
        "deleteSubGroup",
        "Delete a consumer group; with -c its retry and dead-letter topics too.",
        delete_sub_group,
        (
            _BROKER,
            _CLUSTER,
            _GROUP,
            may("r", "removeOffset", "true to forget its offsets (false)"),
        ),
        (106, 201, 207, 215, 216),
        any_of=("b", "c"),
    ),
    Command(
        "getConsumerConfig",
        "The settings of a consumer group on every broker.",
        get_consumer_config,
        (_GROUP,),
        (106, 201),
    ),
    Command(
        "setConsumeMode",
        "Whether a group pulls or pops a topic; Contrail's brokers know pulls only.",
        set_consume_mode,
        (
            _BROKER,
            _CLUSTER,
            need("t", "topicName", "topic name"),
            _GROUP,
            need("m", "mode", "PULL or POP"),
            may("q", "popShareQueueNum", "queues that members share when they pop (0)"),
        ),
        (106, 401),
        any_of=("b", "c"),
    ),
)
