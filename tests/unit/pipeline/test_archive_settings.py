"""What an archive job is told: contradictions are named, and the rest becomes source options."""

from __future__ import annotations

from typing import Any

import pytest

from contrail.errors import OptionInvalid
from contrail.pipeline.jobs.archive import ArchiveSettings, source_options, span_options
from contrail.pipeline.jobs.archive_layout import Range
from contrail.pipeline.jobs.queue_ranges import is_chosen
from contrail.pipeline.offsets import QueueKey
from contrail.pipeline.options import SourceSettings

LIVE: dict[str, Any] = {"archive": "a", "topics": ("orders",), "namesrv": "127.0.0.1:9876"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"topic_pattern": "o.*"}, "topics and topic_pattern"),
        ({"topics": ()}, "topics: give at least one"),
        ({"namesrv": None}, "namesrv and store_path"),
        ({"store_path": "s"}, "namesrv and store_path"),
        ({"namesrv": None, "store_path": "s"}, "store_path and broker_name"),
        ({"broker_name": "broker-a"}, "store_path and broker_name"),
        (
            {"namesrv": None, "store_path": "s", "broker_name": "b", "follow": True},
            "follow: it needs a broker",
        ),
        (
            {"namesrv": None, "store_path": "s", "broker_name": "b", "since_ms": 1},
            "since_ms: it needs a broker",
        ),
        ({"compression": "zip"}, "compression 'zip'"),
        ({"round_rows": 0}, "round_rows 0"),
    ],
)
def test_a_contradiction_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionInvalid, match=named):
        ArchiveSettings(**{**LIVE, **changes})


def test_a_rounds_options_are_ones_that_the_source_takes() -> None:
    settings = ArchiveSettings(**LIVE, options={"tls.enable": "true"})
    spans = {QueueKey("orders", "broker-a", 3): Range(5, 9)}
    options = {**source_options(settings), **span_options(spans)}
    read = SourceSettings.of(
        {name: text for name, text in options.items() if text}, streaming=False
    )
    assert read.assigned == {"orders": (("broker-a", 3),)}
    assert read.starting.by_queue == {("orders", "broker-a", 3): 5}
    assert read.ending.by_queue == {("orders", "broker-a", 3): 9}
    assert read.cluster.tls_enable


def test_a_store_folder_gives_the_topics_that_are_asked_for() -> None:
    def chosen(topic: str, **options: str) -> bool:
        return is_chosen(topic, SourceSettings.of({"storePath": "s", **options}, streaming=False))

    assert chosen("orders")
    assert not chosen("SCHEDULE_TOPIC_XXXX")
    assert chosen("SCHEDULE_TOPIC_XXXX", internalTopics="true")
    assert chosen("orders", subscribe="orders,stock")
    assert not chosen("payments", subscribe="orders,stock")
    assert chosen("orders", subscribePattern="ord.*")
    assert not chosen("my-orders", subscribePattern="ord.*")
