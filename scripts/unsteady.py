"""The rule for tests that fail beside others and pass alone, as decision 0023 explains it.

Tests of real processes may be asked once more. One that passes then is entered in
tests/unsteady.toml with its cause; if it fails beside others again, the run fails.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LEDGER = Path(__file__).parents[1] / "tests" / "unsteady.toml"
ROOMS = ("tests/e2e/", "tests/interop/", "tests/spark/")
AGAIN_MAX = 3
UNKNOWN = "unknown"
UNKNOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """A test that failed beside others, passed alone, and is not mended yet."""

    test: str
    commit: str
    failed: str
    cause: str

    def as_toml(self) -> str:
        # A JSON string is a TOML string.
        return "[[unsteady]]\n" + "".join(
            f"{name} = {json.dumps(getattr(self, name), ensure_ascii=False)}\n"
            for name in self.__slots__
        )


def read_entries(text: str) -> list[Entry]:
    return [Entry(**one) for one in tomllib.loads(text).get("unsteady", [])]


def committed_entries() -> list[Entry]:
    return read_entries(LEDGER.read_text(encoding="utf-8"))


def too_many_unknown(entries: list[Entry]) -> str:
    """Why no run may begin; empty when it may."""
    unknown = [entry.test for entry in entries if entry.cause == UNKNOWN]
    if len(unknown) <= UNKNOWN_MAX:
        return ""
    return _lines(f"more than {UNKNOWN_MAX} unsteady tests of unknown cause:", unknown)


def refusal(failed: Mapping[str, str], entries: list[Entry]) -> str:
    """Why these failures are final; empty when the tests may be asked once more, alone."""
    elsewhere = [test for test in failed if not test.startswith(ROOMS)]
    if elsewhere:
        return _lines("failed, and no test of these folders is asked again:", elsewhere)
    known = [test for test in failed if test in {entry.test for entry in entries}]
    if known:
        return _lines("failed again, though tests/unsteady.toml has them: mend them:", known)
    if len(failed) > AGAIN_MAX:
        return f"{len(failed)} tests failed: too many to be asked again alone"
    return ""


def new_entries(failed: Mapping[str, str], commit: str) -> str:
    """The entries to commit after tests passed alone."""
    entries = [Entry(test, commit, why, UNKNOWN) for test, why in failed.items()]
    return "\n".join(entry.as_toml() for entry in entries)


def _lines(first: str, rest: list[str]) -> str:
    return "\n  ".join([first, *rest])
