"""Planned changes take effect in order once their file has them; a failed write drops them."""

from __future__ import annotations

import pytest

from contrail.runtime.durable_changes import Done, DurableChanges


class Table:
    """A table of numbers whose file is written when the test calls for it."""

    def __init__(self) -> None:
        self.entries: dict[str, int] = {}
        self.epoch = 0
        self.file: dict[str, int] = {}
        self.told: list[str] = []
        self._waiting: list[Done] = []
        self.changes: DurableChanges[str, int] = DurableChanges(self._waiting.append)
        self.changes.epoch = lambda: self.epoch

    def set(self, name: str, value: int | None, *, fails: bool = False) -> None:
        def believe() -> None:
            if fails:
                raise ValueError("it cannot be carried out")
            self.put(name, value)

        def done(problem: Exception | None) -> None:
            self.told.append(f"{name}: {problem}")

        self.changes.submit({name: value}, 1, believe, done)

    def put(self, name: str, value: int | None) -> None:
        self.entries[name] = value or 0
        self.epoch += 1
        if value is None:
            del self.entries[name]

    def begin(self) -> list[Done]:
        """Copy the content of a write; returns the callbacks that wait for it."""
        self.file = dict(self.entries)
        for change in self.changes.planned():
            for name, value in change.entries.items():
                self.file[name] = value or 0
                if value is None:
                    del self.file[name]
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    def newest(self, name: str) -> int | None:
        return self.changes.newest(name, self.entries.get(name))


def end(waiting: list[Done], problem: Exception | None = None) -> None:
    for done in waiting:
        done(problem)


def test_a_change_is_planned_before_its_write_and_takes_effect_after() -> None:
    table = Table()
    table.set("a", 1)
    assert (table.entries, table.newest("a"), table.told) == ({}, 1, [])
    waiting = table.begin()
    assert table.file == {"a": 1}
    end(waiting)
    assert (table.entries, table.told, table.changes.planned_count) == ({"a": 1}, ["a: None"], 0)


def test_changes_during_a_write_share_the_next_write_and_see_each_other() -> None:
    table = Table()
    table.set("a", 1)
    first = table.begin()
    table.set("a", 2)
    table.set("b", 3)
    table.set("a", None)
    assert (table.newest("a"), table.newest("b"), table.newest("c")) == (None, 3, None)
    assert len(first) == 1
    end(first)
    second = table.begin()
    assert table.file == {"b": 3}
    end(second)
    assert table.entries == {"b": 3}
    assert table.told == ["a: None", "a: None", "b: None", "a: None"]


@pytest.mark.proves("broker.durable.answered-after")
def test_a_failed_write_leaves_the_table_unchanged_and_the_next_write_lacks_the_change() -> None:
    table = Table()
    table.put("a", 1)
    table.set("a", 2)
    waiting = table.begin()
    table.set("b", 3)
    end(waiting, OSError("no space"))
    assert (table.entries, table.newest("a")) == ({"a": 1}, 1)
    end(table.begin())
    assert table.file == table.entries == {"a": 1, "b": 3}
    assert table.told == ["a: no space", "b: None"]


def test_a_change_in_effect_does_not_count_as_unwritten() -> None:
    table = Table()
    table.set("a", 1)
    waiting = table.begin()
    table.put("b", 2)
    end(waiting)
    assert table.epoch - table.changes.believed_epochs == 1


def test_a_change_that_cannot_be_carried_out_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    table = Table()
    table.set("a", 1, fails=True)
    table.set("b", 2)
    end(table.begin())
    assert table.told == ["a: it cannot be carried out", "b: None"]
    assert "could not be carried out" in caplog.text


def test_a_change_that_the_writer_refuses_is_not_planned() -> None:
    def full(done: Done) -> None:
        raise RuntimeError("full")

    changes: DurableChanges[str, int] = DurableChanges(full)
    with pytest.raises(RuntimeError):
        changes.submit({"a": 1}, 1, lambda: None)
    assert (changes.planned_count, changes.newest("a", None)) == (0, None)


def test_without_a_file_changes_take_effect_in_submit() -> None:
    believed: list[str] = []
    changes: DurableChanges[str, int] = DurableChanges()
    changes.submit({"a": 1}, 1, lambda: believed.append("a"), lambda p: believed.append(str(p)))
    assert believed == ["a", "None"]
