"""The memory of a topic that de-duplicates: its keys, and how long it keeps them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.broker.state.attributes import (
    DEDUPE_COUNT_ATTRIBUTE,
    DEDUPE_COUNT_DEFAULT,
    DEDUPE_COUNT_MAX,
    DEDUPE_MS_ATTRIBUTE,
    DEDUPE_MS_DEFAULT,
    DEDUPE_MS_MAX,
    TOPIC_ATTRIBUTES,
    alter_attributes,
    parse_changes,
)
from contrail.broker.state.send_memory import FirstSend, SendMemory, Window
from contrail.errors import RequestRejected

NOW_MS = 1_760_000_000_000
WIDE = Window(60_000, 1_000)
DROP_COUNT_MAX = 8


def first_send(number: int, now_ms: int = NOW_MS) -> FirstSend:
    return FirstSend(number % 16, number, number * 300, now_ms)


class Model:
    """The same as a list, oldest first."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.sends: list[tuple[bytes, FirstSend]] = []

    def find(self, key: bytes, now_ms: int) -> FirstSend | None:
        first = dict(self.sends).get(key)
        if first is None or now_ms - first.store_timestamp_ms > self.window.age_ms_max:
            return None
        return first

    def remember(self, key: bytes, first: FirstSend) -> None:
        self.sends = [send for send in self.sends if send[0] != key]
        for _ in range(DROP_COUNT_MAX):
            if self.sends and self._must_go(self.sends[0][1], first.store_timestamp_ms):
                del self.sends[0]
        self.sends.append((key, first))

    def _must_go(self, oldest: FirstSend, now_ms: int) -> bool:
        is_full = len(self.sends) >= self.window.key_count_max
        return is_full or now_ms - oldest.store_timestamp_ms > self.window.age_ms_max


# A clock that mostly goes on, and is put back and forth now and then.
STEPS_MS = st.integers(0, 5) | st.integers(-60, 60)
KEYS = st.integers(0, 30).map(lambda number: b"key%d" % number)
WINDOWS = st.builds(Window, st.integers(1, 40), st.integers(1, 12))


@given(WINDOWS, st.lists(st.tuples(KEYS, STEPS_MS, st.none() | WINDOWS), max_size=120))
def test_a_memory_knows_what_its_model_knows_whatever_the_clock_does(
    window: Window, steps: list[tuple[bytes, int, Window | None]]
) -> None:
    memory, model = SendMemory(window), Model(window)
    now_ms = NOW_MS
    for number, (key, step_ms, changed) in enumerate(steps):
        now_ms += step_ms
        if changed is not None and number % 20 == 19:
            memory.window = model.window = changed
        found = memory.find(key, now_ms)
        assert found == model.find(key, now_ms)
        if found is None:
            memory.remember(key, first_send(number, now_ms))
            model.remember(key, first_send(number, now_ms))
        assert len(memory) == len(model.sends)
    for known in (b"key%d" % number for number in range(31)):
        assert memory.find(known, now_ms) == model.find(known, now_ms)


@given(st.lists(KEYS, unique=True), st.integers(1, 40))
def test_reading_back_from_the_newest_on_gives_the_same_memory(
    keys: list[bytes], count: int
) -> None:
    window = Window(60_000, count)
    lived, read_back = SendMemory(window), SendMemory(window)
    sends = [(key, first_send(number)) for number, key in enumerate(keys)]
    for key, first in sends:
        lived.remember(key, first)
    for key, first in reversed(sends):
        read_back.remember_older(key, first)
    assert len(lived) == len(read_back) == min(count, len(keys))
    for key in keys:
        assert lived.find(key, NOW_MS) == read_back.find(key, NOW_MS)
    # And both forget in the same order from here on.
    for number in range(count):
        for memory in (lived, read_back):
            memory.remember(b"later%d" % number, first_send(number))
        assert [lived.find(key, NOW_MS) for key in keys] == [
            read_back.find(key, NOW_MS) for key in keys
        ]


def test_of_a_key_that_is_read_back_twice_the_newest_place_counts() -> None:
    memory = SendMemory(WIDE)
    memory.remember_older(b"a", first_send(2))
    memory.remember_older(b"a", first_send(1))
    assert memory.find(b"a", NOW_MS) == first_send(2)
    assert len(memory) == 1


def test_a_repeat_does_not_make_the_window_longer() -> None:
    memory = SendMemory(WIDE)
    memory.remember(b"a", first_send(1))
    assert memory.find(b"a", NOW_MS + 60_000) == first_send(1)
    assert memory.find(b"a", NOW_MS + 60_001) is None


def test_a_clock_that_is_put_back_forgets_nothing() -> None:
    memory = SendMemory(WIDE)
    memory.remember(b"a", first_send(1))
    memory.remember(b"b", first_send(2, NOW_MS - 3_600_000))
    assert memory.find(b"a", NOW_MS - 3_600_000) == first_send(1)
    assert memory.find(b"a", NOW_MS) == first_send(1)
    assert memory.find(b"b", NOW_MS) is None


def test_everything_that_is_known_of_a_send_comes_back() -> None:
    memory = SendMemory(WIDE)
    sent = FirstSend(65_534, (1 << 60) + 1, (1 << 62) + 3, NOW_MS)
    memory.remember(b"timer", sent)
    assert memory.find(b"timer", NOW_MS) == sent


def test_many_keys_are_found_and_cost_less_than_a_hundred_bytes_each() -> None:
    count = 20_000
    memory = SendMemory(Window(60_000, count))
    for number in range(2 * count):
        memory.remember(b"7F000001%024X" % number, first_send(number))
    assert len(memory) == count
    assert memory.byte_count / count < 100
    for number in range(0, 2 * count, 7):
        known = first_send(number) if number >= count else None
        assert memory.find(b"7F000001%024X" % number, NOW_MS) == known


def test_a_window_that_shrinks_is_reached_step_by_step() -> None:
    memory = SendMemory(WIDE)
    for number in range(100):
        memory.remember(b"%d" % number, first_send(number))
    memory.window = Window(60_000, 10)
    for number in range(100, 120):
        before = len(memory)
        memory.remember(b"%d" % number, first_send(number))
        assert before - len(memory) < DROP_COUNT_MAX
    assert len(memory) == 10
    assert memory.find(b"119", NOW_MS) == first_send(119)
    assert memory.find(b"109", NOW_MS) is None


# Attributes.


@pytest.mark.parametrize(
    ("attributes", "window"),
    [
        ({}, None),
        ({"message.type": "NORMAL"}, None),
        ({DEDUPE_MS_ATTRIBUTE: "5000"}, Window(5000, DEDUPE_COUNT_DEFAULT)),
        ({DEDUPE_COUNT_ATTRIBUTE: "50"}, Window(DEDUPE_MS_DEFAULT, 50)),
        ({DEDUPE_MS_ATTRIBUTE: "1", DEDUPE_COUNT_ATTRIBUTE: "2"}, Window(1, 2)),
        # A table that somebody edited by hand.
        ({DEDUPE_MS_ATTRIBUTE: "soon"}, Window(DEDUPE_MS_DEFAULT, DEDUPE_COUNT_DEFAULT)),
    ],
)
def test_either_attribute_switches_it_on(attributes: dict[str, str], window: Window | None) -> None:
    assert Window.of(attributes) == window


def test_the_attributes_are_given_changed_and_removed_like_any_other() -> None:
    made = alter_attributes(
        None,
        parse_changes(f"+{DEDUPE_MS_ATTRIBUTE}=5000,+{DEDUPE_COUNT_ATTRIBUTE}=10"),
        TOPIC_ATTRIBUTES,
    )
    assert Window.of(made) == Window(5000, 10)
    longer = alter_attributes(made, parse_changes(f"+{DEDUPE_MS_ATTRIBUTE}=6000"), TOPIC_ATTRIBUTES)
    assert Window.of(longer) == Window(6000, 10)
    off = alter_attributes(
        longer,
        parse_changes(f"-{DEDUPE_MS_ATTRIBUTE},-{DEDUPE_COUNT_ATTRIBUTE}"),
        TOPIC_ATTRIBUTES,
    )
    assert Window.of(off) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (DEDUPE_MS_ATTRIBUTE, "0"),
        (DEDUPE_MS_ATTRIBUTE, "-1"),
        (DEDUPE_MS_ATTRIBUTE, ""),
        (DEDUPE_MS_ATTRIBUTE, "1e3"),
        (DEDUPE_MS_ATTRIBUTE, "\u0661"),
        (DEDUPE_MS_ATTRIBUTE, str(DEDUPE_MS_MAX + 1)),
        (DEDUPE_COUNT_ATTRIBUTE, str(DEDUPE_COUNT_MAX + 1)),
        (DEDUPE_COUNT_ATTRIBUTE, "9" * 5000),
    ],
)
def test_a_window_that_cannot_be_kept_is_refused(name: str, value: str) -> None:
    with pytest.raises(RequestRejected, match="must be a whole number from 1 to"):
        alter_attributes(None, {f"+{name}": value}, TOPIC_ATTRIBUTES)
