"""What a dedupe job refuses before it starts."""

from __future__ import annotations

from typing import Any

import pytest

from contrail.errors import OptionInvalid
from contrail.pipeline.jobs.dedupe import DedupeSettings, spark_interval


def settings(**changed: Any) -> DedupeSettings:
    given: dict[str, Any] = {
        "namesrv": "here:9876",
        "topic": "orders",
        "to_topic": "orders-once",
        "checkpoint": "/x",
    }
    return DedupeSettings(**{**given, **changed})


def test_the_usual_settings_are_fine() -> None:
    settings().check()
    settings(to_topic="orders", to_namesrv="there:9876").check()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"to_topic": "orders"}, "its own target"),
        ({"time": "sent"}, "born or store"),
        ({"starting": "middle"}, "earliest or latest"),
        ({"key": ""}, r"a path like \$.id"),
        ({"key": "auto"}, r"a path like \$.id"),
        ({"window": "soon"}, "such as 30s, 10m, 2h or 1d"),
        ({"window": "0s"}, "such as 30s"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_it_may_be(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionInvalid, match=told):
        settings(**changed).check()


@pytest.mark.parametrize(
    ("window", "told"), [("500ms", "500 milliseconds"), ("10m", "10 minutes"), ("1d", "1 days")]
)
def test_a_window_is_told_in_sparks_words(window: str, told: str) -> None:
    assert spark_interval(window) == told


def test_what_is_remembered_may_not_change_between_runs() -> None:
    assert settings().fixed() == settings(rows_per_batch=5, continuous=True).fixed()
    assert settings().fixed() != settings(window="2h").fixed()
    assert settings().fixed() != settings(key="$.id").fixed()
