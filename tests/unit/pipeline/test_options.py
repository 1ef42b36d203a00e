"""The options of the source and the sink: their meanings and refusals."""

from __future__ import annotations

import pickle
import re

import pytest

from contrail.errors import OptionInvalid
from contrail.pipeline.cluster import client_settings
from contrail.pipeline.options import (
    CLUSTER_OPTIONS,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    Idempotence,
    Place,
    PlaceKind,
    SinkSettings,
    SourceSettings,
    wants_properties,
)
from contrail.protocol.signing import Credentials

NAMESRV = {"namesrvAddr": "a:9876"}
ORDERS = {**NAMESRV, "subscribe": "orders"}
OFFLINE = {"storePath": "/store"}


def batch(**options: str) -> SourceSettings:
    return SourceSettings.of({**ORDERS, **options}, streaming=False)


def stream(**options: str) -> SourceSettings:
    return SourceSettings.of({**ORDERS, **options}, streaming=True)


def sink(**options: str) -> SinkSettings:
    return SinkSettings.of({**NAMESRV, **options})


def test_a_batch_reads_all_messages_and_a_stream_new_ones() -> None:
    assert batch().starting.kind is PlaceKind.EARLIEST
    assert batch().ending.kind is PlaceKind.LATEST
    assert stream().starting.kind is PlaceKind.LATEST


def test_settings_without_options_have_the_defaults_of_the_table() -> None:
    made = SourceSettings.of(ORDERS, streaming=False)
    plain = SourceSettings(
        cluster=made.cluster, streaming=False, topics=("orders",), starting=made.starting,
        ending=made.ending,
    )  # fmt: skip
    assert made == plain
    assert SinkSettings.of(NAMESRV) == SinkSettings(cluster=made.cluster)


def test_option_names_are_accepted_in_any_case_as_spark_passes_them() -> None:
    given = {"NAMESRVADDR": "a:1,b:2", "subscribe": " x , y,x ", "failondataloss": "FALSE"}
    settings = SourceSettings.of(given, streaming=False)
    assert settings.cluster.namesrv_addr == "a:1;b:2"
    assert settings.topics == ("x", "y")
    assert settings.fail_on_data_loss is False


def test_headers_is_another_name_of_properties() -> None:
    assert batch(includeHeaders="true").include_properties
    assert wants_properties({"includeheaders": "true"})
    assert not wants_properties(ORDERS)
    with pytest.raises(OptionInvalid, match="includeProperties: it is given twice"):
        batch(includeHeaders="true", includeProperties="false")


@pytest.mark.proves("spark.source.options")
@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("kafka.bootstrap.servers", "namesrvAddr"),
        ("kafka.group.id", "consumerGroup"),
        ("kafkaConsumer.pollTimeoutMs", "pullTimeoutMs"),
        ("startingOffset", "startingOffsets"),
        ("MAXOFFSETPERTRIGGER", "maxOffsetsPerTrigger"),
        ("path", "storePath"),
    ],
)
def test_an_unknown_option_is_refused_with_a_suggestion(wrong: str, meant: str) -> None:
    with pytest.raises(OptionInvalid, match=re.escape(f"{wrong}: ") + f".*did you mean {meant}"):
        batch(**{wrong: "1"})


def test_an_option_without_a_similar_name_is_refused_with_all_names() -> None:
    with pytest.raises(OptionInvalid, match=r"zzz: .*there are .*subscribe") as refused:
        batch(zzz="1")
    names = str(refused.value).partition("there are ")[2].split(", ")
    assert sorted(names) == sorted({*CLUSTER_OPTIONS, *SOURCE_OPTIONS})


def test_an_option_of_the_other_side_is_refused() -> None:
    with pytest.raises(OptionInvalid, match="idempotence: it is an option of the sink only"):
        batch(idempotence="none")
    with pytest.raises(OptionInvalid, match="subscribe: it is an option of the source only"):
        sink(subscribe="orders")


def test_sparks_own_options_are_ignored() -> None:
    assert sink(checkpointlocation="/c", queryname="q") == sink()


@pytest.mark.parametrize("name", ["accessKey", "secretKey"])
def test_half_of_the_credentials_is_refused_without_being_shown(name: str) -> None:
    with pytest.raises(OptionInvalid, match="accessKey and secretKey: give both") as refused:
        batch(**{name: "hunter2"})
    assert "hunter2" not in str(refused.value)


def test_credentials_reach_the_client_and_are_not_shown() -> None:
    settings = batch(accessKey="shop", secretKey="hunter2")
    assert "hunter2" not in repr(settings)
    assert client_settings(settings.cluster).credentials == Credentials("shop", "hunter2")
    assert "hunter2" not in repr(client_settings(settings.cluster))
    assert batch().cluster.credentials is None


def test_the_password_of_a_key_is_not_shown() -> None:
    settings = batch(
        **{
            "tls.enable": "true",
            "tls.client.certPath": "/c.pem",
            "tls.client.keyPath": "/k.pem",
            "tls.client.keyPassword": "hunter2",
        }
    )
    assert settings.cluster.tls_key_password == "hunter2"
    assert "hunter2" not in repr(settings)


@pytest.mark.proves("spark.source.options")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "a"}, "namesrvAddr: it is missing"),
        (NAMESRV, "subscribe: it is missing"),
        ({**NAMESRV, "subscribe": " , "}, "subscribe=','"),
        ({**ORDERS, "assign": '{"a": ["b:0"]}'}, "subscribe and assign: they exclude"),
        ({**NAMESRV, "subscribePattern": "("}, r"subscribePattern=.\("),
        ({**NAMESRV, "assign": '{"a": "b:0"}'}, "assign: give 'a' a list"),
        ({**NAMESRV, "assign": '{"a": ["b"]}'}, "assign: 'b' is no queue"),
        ({**NAMESRV, "assign": "[]"}, r"assign='\[\]': give JSON"),
        ({**ORDERS, "tags": "a", "sqlFilter": "b"}, "tags and sqlFilter: they exclude"),
        ({**ORDERS, "consumerGroup": "a"}, "consumerGroup: only a stream can have it"),
        ({**ORDERS, "startingOffsets": "latest"}, "startingOffsets: a batch cannot start at"),
        ({**ORDERS, "startingOffsets": '{"a": {"b:0": -1}}'}, "a batch cannot start at latest"),
        ({**ORDERS, "endingOffsets": '{"a": {"b:0": -2}}'}, "endingOffsets: a batch cannot end"),
        ({**ORDERS, "startingOffsets": '{"a": {"b:0": -3}}'}, "give a number from -2 on"),
        ({**ORDERS, "startingOffsets": "soon"}, "startingOffsets='soon': it is not JSON"),
        ({**ORDERS, "startingOffsets": "group:"}, "startingOffsets='group:': a read begins where"),
        ({**ORDERS, "endingOffsets": "group:billing"}, "endingOffsets='group:billing': a read beg"),
        ({"storePath": "/s", "startingOffsets": "group:billing"}, "is read without groups"),
        ({**ORDERS, "startingOffsets": '{"a": 3}'}, "startingOffsets: give 'a' an object"),
        ({**ORDERS, "startingTimestamp": "now"}, "startingTimestamp='now': give a whole number"),
        ({**ORDERS, "minPartitions": "0"}, "minPartitions=0: it must be 1 or more"),
        ({**ORDERS, "failOnDataLoss": "maybe"}, "failOnDataLoss='maybe': give true or false"),
        ({**ORDERS, "startingOffsetsByTimestampStrategy": "x"}, "give error or latest"),
        ({**ORDERS, "maxOffsetsPerTrigger": "9"}, "maxOffsetsPerTrigger: only a stream"),
        ({**ORDERS, "tls.client.certPath": "c"}, "tls.client.keyPath: give both or neither"),
        ({**ORDERS, "segmentBytes": "9"}, "segmentBytes: it is for storePath only"),
        ({**OFFLINE, **NAMESRV}, "namesrvAddr: storePath reads files"),
        ({**OFFLINE, "sqlFilter": "a"}, "sqlFilter: it needs a broker"),
    ],
)
def test_contradicting_and_malformed_options_are_refused_by_name(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionInvalid, match=message):
        SourceSettings.of(options, streaming=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": '{"a": {"b:0": 3}}'}, "endingOffsets: a stream cannot have it"),
        ({"endingTimestamp": "3"}, "endingTimestamp: a stream cannot"),
        ({"pushdown": "true"}, "pushdown: a stream cannot have it"),
        ({"storePath": "/store"}, "storePath: a stream cannot have it"),
        ({"consumerGroup": "a", "groupIdPrefix": "b"}, "they exclude each other"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "must not be above"),
        ({"maxTriggerDelay": "3s"}, "maxTriggerDelay: it needs minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "9", "maxTriggerDelay": "soon"}, "maxTriggerDelay='soon'"),
    ],
)
def test_options_that_a_stream_cannot_have_are_refused_by_name(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionInvalid, match=message):
        stream(**options)


def test_a_default_written_out_contradicts_nothing() -> None:
    assert stream(endingOffsets="latest", pushdown="false", maxTriggerDelay="15m") == stream()


@pytest.mark.proves("spark.source.start-and-end")
def test_a_batch_and_a_stream_may_begin_where_a_group_stands() -> None:
    place = Place(PlaceKind.GROUP, group="billing", option="startingOffsets")
    assert batch(startingOffsets="group:billing").starting == place
    assert stream(startingOffsets="Group: billing ").starting == place


def test_the_starting_place_is_a_time_for_all_then_times_by_queue_then_offsets() -> None:
    by_offset = {"startingOffsets": '{"t": {"b:0": 5, "b:1": -2}}'}
    by_time = {"startingOffsetsByTimestamp": '{"t": {"b:0": 1000}}'}
    for_all = {"startingTimestamp": "2000"}
    assert batch(**by_offset).starting == Place(
        PlaceKind.OFFSETS,
        by_queue={("t", "b", 0): 5, ("t", "b", 1): -2},
        option="startingOffsets",
    )
    assert batch(**by_offset, **by_time).starting == Place(
        PlaceKind.TIMESTAMPS,
        by_queue={("t", "b", 0): 1000},
        option="startingOffsetsByTimestamp",
    )
    assert batch(**by_offset, **by_time, **for_all).starting == Place(
        PlaceKind.TIMESTAMP, timestamp_ms=2000, option="startingTimestamp"
    )
    assert batch(endingTimestamp="3000", endingOffsets="latest").ending.timestamp_ms == 3000


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("250ms", 250), ("30s", 30_000), ("15m", 900_000), ("2 h", 7_200_000)],
)
def test_a_delay_is_read_with_its_unit(text: str, milliseconds: int) -> None:
    settings = stream(minOffsetsPerTrigger="2", maxTriggerDelay=text)
    assert settings.max_trigger_delay_ms == milliseconds


def test_queues_are_named_with_their_broker() -> None:
    settings = SourceSettings.of(
        {**NAMESRV, "assign": '{"t": ["b:0", "c:d:1", "b:0"]}'}, streaming=True
    )
    assert settings.assigned == {"t": (("b", 0), ("c:d", 1))}


def test_a_stream_publishes_its_progress_to_the_given_group() -> None:
    assert stream().group is None
    assert stream(consumerGroup="mine").group == "mine"


def test_a_group_made_from_a_prefix_is_the_same_each_time_and_another_for_other_topics() -> None:
    group = stream(groupIdPrefix="p").group
    assert group is not None and group.startswith("p-")
    assert stream(groupIdPrefix="p", maxOffsetsPerTrigger="3").group == group
    assert stream(groupIdPrefix="p", subscribe="bills").group != group


def test_settings_can_be_pickled_for_executors() -> None:
    for settings in (batch(startingTimestamp="1"), stream(), sink(topic="t")):
        assert pickle.loads(pickle.dumps(settings)) == settings


def test_the_sink_has_its_modes() -> None:
    assert sink().idempotence is None
    assert sink(idempotence="TRANSACTIONAL").idempotence is Idempotence.TRANSACTIONAL
    assert sink(dedupeBy="keys").dedupe_by_keys


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"idempotence": "twice"}, "idempotence='twice': give none or dedupe or transactional"),
        ({"idempotence": "none", "sinkId": "a"}, "sinkId: idempotence=none remembers nothing"),
        ({"idempotence": "transactional", "dedupeBy": "keys"}, "dedupeBy: it is for"),
        ({"asyncprogresstrackingenabled": "true"}, "asyncProgressTrackingEnabled=true: a replayed"),
        ({"path": "x"}, r"path: there is no such option .*did you mean topic"),
    ],
)
def test_the_sink_refuses_guarantees_that_it_cannot_keep(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionInvalid, match=message):
        sink(**options)


def test_async_progress_is_accepted_without_idempotence() -> None:
    assert sink(asyncProgressTrackingEnabled="true", idempotence="none").async_progress


def test_the_tables_share_no_name() -> None:
    names = [*CLUSTER_OPTIONS, *SOURCE_OPTIONS, *SINK_OPTIONS]
    assert len({name.lower() for name in names}) == len(names)


@pytest.mark.proves("spark.clusters.offsets-order")
@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {
                "startingOffsets": '{"orders": {"broker-a:0": 12}}',
                "endingOffsets": '{"orders": {"broker-a:0": 11}}',
            },
            "endingOffsets: orders broker-a:0 would end at 11, before 12, where startingOffsets",
        ),
        (
            {"startingTimestamp": "2000", "endingTimestamp": "1999"},
            "endingTimestamp: 1999 is before startingTimestamp, 2000",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"orders": {"broker-a:0": 12}}',
                "endingOffsetsByTimestamp": '{"orders": {"broker-a:0": 11}}',
            },
            "endingOffsetsByTimestamp: orders broker-a:0 would end at 11, before 12",
        ),
    ],
)
def test_an_end_before_the_start_is_refused_with_both_names(
    given: dict[str, str], told: str
) -> None:
    for place in ({"namesrvAddr": "a:1", "subscribe": "orders"}, {"storePath": "/x"}):
        with pytest.raises(OptionInvalid, match=re.escape(told)):
            SourceSettings.of({**place, **given}, streaming=False)
        same = {
            name: text.replace("11", "12").replace("1999", "2000") for name, text in given.items()
        }
        SourceSettings.of({**place, **same}, streaming=False)
