"""Write docs/status.md and the ledger behind it from the clauses and the tests that prove them.

    .venv/bin/python -m scripts.status

A clause is a table of ``docs/status/<room>/<section>.toml``; its id is its path and name:
``[segments]`` of ``store/log.toml`` is ``store.log.segments``. docs/status/README.md says how to
add one.
"""

from __future__ import annotations

import re
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from scripts.proofs import ROOT, Proof, proofs_of

STATE = re.compile(r"(done|open|differs)(?:: (\S.*))?")
MAKE_COMMAND = re.compile(r"make ([a-z-]+)(?: [A-Z]+=\S+)*")
RELATIVE_LINK = re.compile(r"\]\((?![a-z]+:|#)")
LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
KEYS = {"clause", "state", "proofs", "note"}
# As much of a sentence as the page for readers shows.
SHORT = 150


@dataclass(frozen=True, slots=True)
class Clause:
    """One promise, where it stands, and what proves it."""

    id: str
    sentence: str
    state: str
    commands: tuple[str, ...]
    note: str
    proofs: tuple[Proof, ...]

    @property
    def kind(self) -> str:
        """``done``, ``open`` or ``differs``."""
        return self.state.partition(":")[0]

    @property
    def reason(self) -> str:
        return self.state.partition(": ")[2]


@dataclass(frozen=True, slots=True)
class Section:
    room: str
    title: str
    clauses: tuple[Clause, ...]

    @property
    def link(self) -> str:
        anchor = re.sub(r"[^\w\- ]", "", self.title.lower()).replace(" ", "-")
        return f"status/{self.room}.md#{anchor}"

    @property
    def whole_sentences(self) -> list[str]:
        """The sentence of each clause; a clause that continues another comes behind it."""
        found, head = list[str](), ""
        for clause in self.clauses:
            goes_on = clause.sentence.startswith("…")
            head = head if goes_on else clause.sentence
            found.append(f"{head} {clause.sentence}" if goes_on else head)
        return found


@dataclass(frozen=True, slots=True)
class Room:
    name: str
    title: str
    sections: tuple[Section, ...]

    @property
    def clauses(self) -> list[Clause]:
        return [clause for section in self.sections for clause in section.clauses]


class Ledger:
    """Every clause with its proofs, in the order of docs/status/rooms.toml."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._folder = root / "docs" / "status"
        self._found = proofs_of(root)
        self._unlisted = set(self._folder.glob("*/*.toml"))
        rooms = tomllib.loads((self._folder / "rooms.toml").read_text(encoding="utf-8"))
        self.rooms = [self._room(name, table) for name, table in rooms.items()]

    @property
    def clauses(self) -> list[Clause]:
        return [clause for room in self.rooms for clause in room.clauses]

    def _room(self, name: str, table: dict[str, Any]) -> Room:
        sections = [self._section(name, section) for section in table["sections"]]
        return Room(name, table["title"], tuple(sections))

    def _section(self, room: str, name: str) -> Section:
        path = self._folder / room / f"{name}.toml"
        self._unlisted.discard(path)
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        title = tables.pop("title")
        clauses = [self._clause(f"{room}.{name}.{key}", table) for key, table in tables.items()]
        return Section(room, title, tuple(clauses))

    def _clause(self, name: str, table: dict[str, Any]) -> Clause:
        sound = {"clause", "state"} <= table.keys() <= KEYS
        assert sound, f"{name} has the keys {', '.join(table)}; see docs/status/README.md"
        proofs = [proof for proof in self._found.proofs if proof.clause == name]
        commands = tuple(table.get("proofs", ()))
        return Clause(
            name, table["clause"], table["state"], commands, table.get("note", ""), tuple(proofs)
        )

    def complaints(self) -> list[str]:
        """The faults of the clauses and of the marks on tests."""
        known = [clause.id for clause in self.clauses]
        targets = re.findall(r"^([a-z-]+):", (self._root / "Makefile").read_text(), re.MULTILINE)
        return [
            *self._found.complaints,
            *(f"rooms.toml does not list {path}" for path in sorted(self._unlisted)),
            *(_unknown(proof, known) for proof in self._found.proofs if proof.clause not in known),
            *(f"{c.id}: {said}" for c in self.clauses for said in _complaints(c, targets)),
        ]


def _unknown(proof: Proof, known: list[str]) -> str:
    meant = get_close_matches(proof.clause, known, n=1)
    hint = f"; is {meant[0]} meant?" if meant else ""
    return f"{proof.file}:{proof.line}: there is no clause {proof.clause}{hint}"


def _complaints(clause: Clause, targets: list[str]) -> Iterator[str]:
    match = STATE.fullmatch(clause.state)
    if not match or (match[1] == "done" and match[2]) or (match[1] == "differs" and not match[2]):
        yield f"state {clause.state!r} is none of done, open, open: where it stands, differs: why"
    if clause.kind != "open" and not clause.proofs and not clause.commands:
        yield "it is not open, no test has its mark and it names no make command"
    for command in clause.commands:
        target = MAKE_COMMAND.fullmatch(command)
        if not target:
            yield f"{command!r} is no make command; a test is named by its mark"
        elif target[1] not in targets:
            yield f"the Makefile has no target {target[1]!r}"
    for proof in clause.proofs:
        for test in proof.tests:
            if test.is_skipped:
                yield f"{proof.file}::{test.name} is always skipped"


def pages(ledger: Ledger) -> dict[str, str]:
    """Every page that is written, by its path below docs/."""
    found = {f"status/{room.name}.md": room_page(room) for room in ledger.rooms}
    return {"status.md": front_page(ledger)} | found


_FRONT_PAGE = """# Status

{counts}. A clause is proven by tests that carry its id as a mark, or by a make command;
`tests/house` checks that each proof is there, that a make target runs it and that it is not always
skipped. The page of a room has its clauses with their proofs. `make status` writes these pages;
[how to add a clause](status/README.md).

| room | clauses | done | differs | open | what is in it |
| --- | ---: | ---: | ---: | ---: | --- |
{rooms}

## Open

Not finished, or finished and not measured yet.

| room | clause | where it stands |
| --- | --- | --- |
{open}

## Differs

Finished, but not as first asked.

| room | clause | why |
| --- | --- | --- |
{differs}
"""


def front_page(ledger: Ledger) -> str:
    """The counts by room, the open clauses and the differing clauses, in two screens."""
    return _FRONT_PAGE.format(
        counts=_counts(ledger.clauses),
        rooms="\n".join(map(_room_row, ledger.rooms)),
        open="\n".join(_rows_of(ledger, "open")),
        differs="\n".join(_rows_of(ledger, "differs")),
    )


def _counts(clauses: list[Clause]) -> str:
    by_kind = Counter(clause.kind for clause in clauses)
    kinds = ", ".join(f"{by_kind[kind]} {kind}" for kind in ("done", "differs", "open"))
    return f"{len(clauses)} clauses: {kinds}" if len(clauses) != 1 else f"1 clause: {kinds}"


def _room_row(room: Room) -> str:
    by_kind = Counter(clause.kind for clause in room.clauses)
    numbers = [len(room.clauses), *(by_kind[kind] for kind in ("done", "differs", "open"))]
    inside = ", ".join(f"[{section.title}]({section.link})" for section in room.sections)
    return _row(f"[{room.title}](status/{room.name}.md)", *map(str, numbers), inside)


def _rows_of(ledger: Ledger, kind: str) -> Iterator[str]:
    for room in ledger.rooms:
        for section in room.sections:
            place = f"[{room.title}]({section.link})"
            for clause, sentence in zip(section.clauses, section.whole_sentences, strict=True):
                if clause.kind == kind:
                    yield _row(place, _short(sentence), _short(clause.reason))


def _short(text: str) -> str:
    """The beginning of a sentence, without links and without half a piece of code."""
    cut = textwrap.shorten(LINK.sub(r"\1", text), SHORT, placeholder=" …")
    return cut if cut.count("`") % 2 == 0 else cut[: cut.rindex("`")].rstrip() + " …"


_ROOM_PAGE = """# Status: {title}

{counts}. Written by `make status`: [all rooms](../status.md), [how to add a clause](README.md).

{sections}
"""
_LEDGER_HEAD = "| id | clause | proof | state |\n| --- | --- | --- | --- |\n"


def room_page(room: Room) -> str:
    """The ledger of a room: every clause, proof and state."""
    sections = "\n\n".join(
        f"## {section.title}\n\n{_LEDGER_HEAD}" + "\n".join(map(_ledger_row, section.clauses))
        for section in room.sections
    )
    return _ROOM_PAGE.format(title=room.title, counts=_counts(room.clauses), sections=sections)


def _ledger_row(clause: Clause) -> str:
    proofs = ", ".join(f"`{proof}`" for proof in [*clause.proofs, *clause.commands])
    proof = f"{proofs} ({clause.note})" if clause.note else proofs
    cells = [f"`{clause.id}`", clause.sentence, proof, clause.state]
    return RELATIVE_LINK.sub("](../", _row(*cells))


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def main() -> int:
    ledger = Ledger()
    for name, text in pages(ledger).items():
        (ROOT / "docs" / name).write_text(text, encoding="utf-8")
    complaints = ledger.complaints()
    print("\n".join(complaints) or _counts(ledger.clauses))
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main())
