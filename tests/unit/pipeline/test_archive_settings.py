"""Settings of an archive job: contradictions are named, the rest becomes source options."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from contrail.cli.pipeline import shared
from contrail.cli.pipeline.archive import archive as command
from contrail.errors import OptionInvalid
from contrail.pipeline.jobs.archive import ArchiveSettings, away_lines, source_options, span_options
from contrail.pipeline.jobs.archive_layout import Range
from contrail.pipeline.jobs.queue_ranges import is_chosen
from contrail.pipeline.jobs.summary import Summary
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


def test_the_source_accepts_a_rounds_options() -> None:
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


def test_a_store_folder_gives_the_chosen_topics() -> None:
    def chosen(topic: str, **options: str) -> bool:
        return is_chosen(topic, SourceSettings.of({"storePath": "s", **options}, streaming=False))

    assert chosen("orders")
    assert not chosen("SCHEDULE_TOPIC_XXXX")
    assert chosen("SCHEDULE_TOPIC_XXXX", internalTopics="true")
    assert chosen("orders", subscribe="orders,stock")
    assert not chosen("payments", subscribe="orders,stock")
    assert chosen("orders", subscribePattern="ord.*")
    assert not chosen("my-orders", subscribePattern="ord.*")


def test_topics_are_chosen_by_name_or_whole_pattern() -> None:
    assert ArchiveSettings(**LIVE).takes("orders")
    assert not ArchiveSettings(**LIVE).takes("orders-2")
    by_pattern = ArchiveSettings(**{**LIVE, "topics": (), "topic_pattern": "ord.*"})
    assert by_pattern.takes("orders-2")
    assert not by_pattern.takes("reorders")


def test_brokers_that_are_away_are_named_with_their_queues() -> None:
    queues = [QueueKey("orders", "b", 1), QueueKey("orders", "b", 0), QueueKey("stock", "b", 3)]
    assert away_lines(["a"], queues) == ["a", "b (orders 0, 1; stock 3)"]


def test_a_broker_that_is_away_ends_the_command_with_1_unless_allowed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def job(settings: ArchiveSettings, **_: object) -> Summary:
        return Summary("archive", "done", {"away": ["broker-b (orders 0)"]}, [])

    monkeypatch.setattr("contrail.pipeline.jobs.archive.archive", job)
    monkeypatch.setattr(shared, "run", lambda run, settings, running: run(settings))
    with pytest.raises(typer.Exit) as ended:
        command("folder", ["orders"], namesrv="127.0.0.1:9876")
    assert ended.value.exit_code == 1
    assert "not archived up to now: broker-b (orders 0)" in capsys.readouterr().err
    command("folder", ["orders"], namesrv="127.0.0.1:9876", allow_away=True)
    assert capsys.readouterr().err == ""
