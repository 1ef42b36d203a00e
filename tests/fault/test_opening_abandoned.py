"""Opening a store is ended on request between any two steps, and the folder opens again."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from contrail.errors import OpeningAbandoned
from contrail.store.log import MessageStore
from tests.fault.store_setup import append_numbers, numbers_of, small_config


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three queues of which only the log is left, as after a bad crash."""
    root = tmp_path / "store"
    with MessageStore.open(small_config(root)) as store:
        for queue_id in range(3):
            append_numbers(store, 0, 40, queue_id=queue_id)
    (root / "abort").write_text("1")
    (root / "contrail.queues").unlink()
    return root


@pytest.mark.proves("store.extensions.used-part")
def test_an_abandoned_opening_releases_the_folder_which_opens_again(root: Path) -> None:
    """Abandoned at the first step, at the second, and so on, until there are no more steps."""
    for steps in count():
        asked = iter(range(steps))
        try:
            store = MessageStore.open(
                small_config(root), is_abandoned=lambda asked=asked: next(asked, None) is None
            )
        except OpeningAbandoned:
            continue
        break
    assert steps > 3
    with store:
        for queue_id in range(3):
            assert numbers_of(store, queue_id=queue_id) == list(range(40))
