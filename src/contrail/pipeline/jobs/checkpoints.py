"""A job's checkpoint folder: the job's name and settings, its notes, and Spark's checkpoints.

FOLDER/job.json     the job's name, its settings, its notes; replaced whole, never torn
FOLDER/spark/...    checkpoints of streaming queries, which Spark writes
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contrail.errors import OptionInvalid
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import read_state, write_state

_FILE = "job.json"
_SPARK = "spark"


class Checkpoint:
    """Belongs to one job with one set of settings, from the first claim on."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = _local_folder(folder)
        self._files = FileSystem()
        self._state: dict[str, Any] | None = None

    def claim(self, job: str, settings: Mapping[str, object]) -> bool:
        """Claim the folder for ``job``; returns whether this is a resumed run.

        ``settings`` are the settings that may not change between runs.

        Raises:
            OptionInvalid: the folder belongs to another job or other settings, or is no folder.
        """
        try:
            return self._claim(job, settings)
        except OSError as error:
            raise _unusable(self.folder, error) from error

    def _claim(self, job: str, settings: Mapping[str, object]) -> bool:
        wanted = _as_written(settings)
        state = self._checked(job, wanted)
        if state is None:
            self._write({"job": job, "settings": wanted, "notes": {}})
            return False
        self._state = state
        return True

    def peek(self, job: str, settings: Mapping[str, object]) -> dict[str, Any]:
        """The notes of earlier runs; refuses what ``claim`` refuses, and changes nothing.

        Raises:
            OptionInvalid: as ``claim``.
        """
        try:
            state = self._checked(job, _as_written(settings))
        except OSError as error:
            raise _unusable(self.folder, error) from error
        return {} if state is None else dict(state["notes"])

    def _checked(self, job: str, wanted: Mapping[str, object]) -> dict[str, Any] | None:
        """The state of this job; None for an unclaimed folder."""
        state = self._read()
        if state is None:
            self._refuse_foreign()
        else:
            _refuse_other(self.folder, job, wanted, state)
        return state

    def spark(self, query: str = "query") -> str:
        """The checkpoint location of one streaming query."""
        return str(self.folder / _SPARK / query)

    @property
    def notes(self) -> dict[str, Any]:
        """The job's notes for its next run."""
        assert self._state is not None, "claim() comes first"
        return dict(self._state["notes"])

    def note(self, **facts: object) -> None:
        """Add ``facts`` to the notes; durable on return."""
        assert self._state is not None, "claim() comes first"
        self._write({**self._state, "notes": {**self._state["notes"], **facts}})

    def _read(self) -> dict[str, Any] | None:
        found = read_state(self._files, self.folder / _FILE, sealed=False, parse=_parsed)
        return found.value

    def _write(self, state: dict[str, Any]) -> None:
        text = json.dumps(state, indent=2, sort_keys=True, default=str)
        write_state(self._files, self.folder / _FILE, text.encode(), sealed=False)
        self._state = json.loads(text)

    def _refuse_foreign(self) -> None:
        if self.folder.is_dir() and any(self.folder.iterdir()):
            raise OptionInvalid(
                f"checkpoint {str(self.folder)!r} is a folder with something else in it: name one "
                "that is new, empty, or the checkpoint of this job"
            )


def look(folder: str | None, job: str, settings: Mapping[str, object]) -> dict[str, Any]:
    """``Checkpoint.peek``; no notes for a dry run without a folder."""
    return Checkpoint(folder).peek(job, settings) if folder else {}


def _as_written(settings: Mapping[str, object]) -> dict[str, Any]:
    written: dict[str, Any] = json.loads(json.dumps(dict(settings), default=str, sort_keys=True))
    return written


def _local_folder(folder: Path | str) -> Path:
    text = str(folder).removeprefix("file://")
    if "://" in text:
        raise OptionInvalid(
            f"checkpoint {text!r} is not a folder: name one that this machine, and the executors, "
            "can write, such as a shared mount"
        )
    # Spark resolves a relative path in its own process, which may have another working folder.
    return Path(text).expanduser().absolute()


def _unusable(folder: Path, error: OSError) -> OptionInvalid:
    return OptionInvalid(
        f"checkpoint {str(folder)!r} cannot be used ({error.strerror}): name a folder that can be "
        "written, or one that is new"
    )


def _parsed(data: bytes) -> dict[str, Any]:
    state = json.loads(data)
    if not isinstance(state, dict) or not {"job", "settings", "notes"} <= state.keys():
        raise ValueError("it is not the state of a job")
    return state


def _refuse_other(
    folder: Path, job: str, wanted: Mapping[str, object], state: Mapping[str, Any]
) -> None:
    if state["job"] != job:
        raise OptionInvalid(
            f"checkpoint {str(folder)!r} belongs to the job {state['job']}: give this {job} another"
        )
    differing = differences(state["settings"], wanted)
    if differing:
        raise OptionInvalid(
            f"checkpoint {str(folder)!r} was made by other settings: {'; '.join(differing)}. Run "
            "with the old ones, or give this run a checkpoint of its own"
        )


def differences(known: Mapping[str, object], wanted: Mapping[str, object]) -> list[str]:
    """Each setting that differs, in words."""
    return [
        f"{name} was {known.get(name)!r} and is now {wanted.get(name)!r}"
        for name in sorted(known.keys() | wanted.keys())
        if known.get(name) != wanted.get(name)
    ]
