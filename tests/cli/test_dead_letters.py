"""Dead letters: why a group gave them up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from contrail.cli.dead_letters import reason_of
from contrail.client.message import ReceivedMessage


def letter(retries: int, **properties: str) -> ReceivedMessage:
    return cast(ReceivedMessage, SimpleNamespace(reconsume_times=retries, properties=properties))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (letter(17), "exhausted"),
        (letter(16), "given-up"),
        (letter(4, MAX_RECONSUME_TIMES="3"), "exhausted"),
        (letter(17, MAX_RECONSUME_TIMES="20"), "given-up"),
        (letter(17, MAX_RECONSUME_TIMES="-1"), "exhausted"),
    ],
)
def test_the_limit_that_was_asked_for_counts_before_that_of_the_group(
    given: ReceivedMessage, reason: str
) -> None:
    assert reason_of(given, 16) == reason
