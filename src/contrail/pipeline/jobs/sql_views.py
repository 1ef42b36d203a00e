"""The relations that a query may name, and their views; uses no Spark.

``topic.orders``, ``archive.orders`` and ``store.orders`` are topics of a cluster, an archive and a
store folder. Spark has no temporary views with two names, so each becomes a view with one name, and
the query is rewritten word by word. Spark itself says which names are missing relations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import NamedTuple

from contrail.errors import OptionInvalid


class Place(StrEnum):
    """The kind of source of a relation."""

    TOPIC = "topic"
    ARCHIVE = "archive"
    STORE = "store"


@dataclass(frozen=True, slots=True, order=True)
class Relation:
    """A topic of a source, as a query names it."""

    place: Place
    topic: str

    def __str__(self) -> str:
        return f"{self.place}.{self.topic}"


class WordKind(Enum):
    """The kinds of a query's words: names, and the sign between the parts of a name."""

    NAME = "name"
    OTHER = "other"


class Word(NamedTuple):
    """A word of a query; ``text`` of a name is without its quotes."""

    kind: WordKind
    text: str
    start: int
    end: int


_WORD = re.compile(
    r"""(?P<space>\s+|--(?:\\\n|[^\n])*)
      | (?P<comment>/\*)
      | (?P<raw>[rR](?:'[^']*'|"[^"]*"))
      | (?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
      | (?P<quoted>`(?:[^`]|``)*`)
      | (?P<name>\w+)
      | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_PLACES = frozenset(place.value for place in Place)
_PART = re.compile(r"`((?:[^`]|``)*)`")
_SCAN = re.compile(r"FileScan parquet .*?InMemoryFileIndex\(\d+ paths\)\[(?P<paths>[^\]]*)\]")
_SCANNED_COLUMNS = re.compile(r"ReadSchema: struct<(?P<columns>.*)>\s*$")


def words(query: str) -> list[Word]:
    """The names and signs of a query, without strings, blanks and comments."""
    return list(_scan(query))


def _scan(query: str) -> Iterator[Word]:
    position = 0
    while position < len(query):
        match = _WORD.match(query, position)
        assert match is not None, "the last alternative takes any character"
        kind, text, start = match.lastgroup, match.group(), position
        position = _comment_end(query, match.end()) if kind == "comment" else match.end()
        if kind == "name":
            yield Word(WordKind.NAME, text, start, position)
        elif kind == "quoted":
            yield Word(WordKind.NAME, text[1:-1].replace("``", "`"), start, position)
        elif kind in ("sign", "raw", "string"):
            yield Word(WordKind.OTHER, text, start, position)


def _comment_end(query: str, position: int) -> int:
    """The end of the comment that began before ``position``; comments may hold comments."""
    depth = 1
    for edge in _COMMENT_EDGE.finditer(query, position):
        depth += 1 if edge.group() == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(query)


def statement(query: str) -> str:
    """The query without the semicolon that may end it.

    Raises:
        OptionInvalid: the query is empty.
    """
    found = words(query)
    while found and found[-1].text == ";" and found[-1].kind is WordKind.OTHER:
        query = query[: found.pop().start]
    if not found:
        raise OptionInvalid('the query is empty: write one, such as "select * from topic.orders"')
    return query


def parse_relation(name: str) -> Relation | None:
    """The relation in Spark's ``name``, each part in backquotes; None for another table."""
    parts = [part.replace("``", "`") for part in _PART.findall(name)]
    return _relation(*parts) if len(parts) == 2 else None


def _relation(place: str, topic: str) -> Relation | None:
    return Relation(Place(place.lower()), topic) if place.lower() in _PLACES else None


def named_relations(query: str) -> list[Relation]:
    """The relations directly after FROM and JOIN; Spark finds the others."""
    found = words(query)
    relations = []
    for before, place, dot, topic in zip(found, found[1:], found[2:], found[3:], strict=False):
        is_name = place.kind is topic.kind is WordKind.NAME and dot.text == "."
        if before.text.lower() in ("from", "join") and is_name:
            relation = _relation(place.text, topic.text)
            if relation is not None:
                relations.append(relation)
    return list(dict.fromkeys(relations))


def name_views(
    query: str, relations: Iterable[Relation], taken_already: Iterable[str] = ()
) -> dict[Relation, str]:
    """A view name for each relation: the topic's own name unless the query uses it otherwise.

    With it ``select orders.tags from topic.orders`` works.
    """
    taken = {word.text.lower() for word in _bare_names(words(query))}
    taken |= {name.lower() for name in taken_already}
    views: dict[Relation, str] = {}
    for relation in sorted(relations):
        for candidate in _candidates(relation):
            if candidate.lower() not in taken:
                break
        taken.add(candidate.lower())
        views[relation] = candidate
    return views


def _candidates(relation: Relation) -> Iterator[str]:
    yield relation.topic
    joined = f"{relation.place}_{relation.topic}"
    yield joined
    number = 2
    while True:
        yield f"{joined}_{number}"
        number += 1


def _bare_names(found: Sequence[Word]) -> Iterator[Word]:
    """Names that neither qualify nor are qualified: relations, columns and aliases."""
    for index, word in enumerate(found):
        if word.kind is not WordKind.NAME:
            continue
        if not _is_dot(found, index - 1) and not _is_dot(found, index + 1):
            yield word


def _is_dot(found: Sequence[Word], index: int) -> bool:
    if not 0 <= index < len(found):
        return False
    return found[index].kind is WordKind.OTHER and found[index].text == "."


def rewrite(query: str, views: Mapping[Relation, str]) -> str:
    """The query with the names of its views, also in qualified columns."""
    pieces: list[str] = []
    position = 0
    for start, end, relation in _mentions(query):
        if relation in views:  # Otherwise it is a column of an alias.
            pieces += [query[position:start], quote(views[relation])]
            position = end
    return "".join([*pieces, query[position:]])


def _mentions(query: str) -> Iterator[tuple[int, int, Relation]]:
    found = words(query)
    for index in range(len(found) - 2):
        first, name = found[index], found[index + 2]
        is_pair = first.kind is WordKind.NAME and name.kind is WordKind.NAME
        if is_pair and _is_dot(found, index + 1) and not _is_dot(found, index - 1):
            relation = _relation(first.text, name.text)
            if relation is not None:
                yield first.start, name.end, relation


def quote(name: str) -> str:
    """A name as an identifier, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def named_columns(query: str, known: Iterable[str]) -> list[str]:
    """The ``known`` columns that a query names anywhere, in the order of ``known``."""
    said = {word.text.lower() for word in words(query) if word.kind is WordKind.NAME}
    return [column for column in known if column.lower() in said]


def scanned_columns(plan: str, known: Sequence[str]) -> dict[str, set[str]]:
    """The columns that a plan reads of each folder, over all its scans, by the folder's name.

    ``known`` are all column names; none of them holds a character that ends a name.
    """
    scanned: dict[str, set[str]] = {}
    for line in plan.splitlines():
        where, what = _SCAN.search(line), _SCANNED_COLUMNS.search(line)
        if where is not None and what is not None:
            folder = where["paths"].rstrip("/").rpartition("/")[2]
            names = {column for column in known if _has_column(what["columns"], column)}
            scanned.setdefault(folder, set()).update(names)
    return scanned


def _has_column(columns: str, name: str) -> bool:
    return re.search(rf"(?:^|,){re.escape(name)}:", columns) is not None
