"""Ad-hoc SQL over live topics, archives and store folders together.

Spark does not tell a Python source which columns a query needs, and most of a message is its body.
A query is therefore analysed twice: first over empty Parquet folders, whose scans in Spark's plan
name the columns they read, then over the messages, with just those columns.
"""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.utils import is_remote

from contrail.errors import NotThere, OptionInvalid
from contrail.pipeline.columns import DEFAULT_COLUMNS, MESSAGE_COLUMNS, schema_of
from contrail.pipeline.jobs.archive import spark_settings
from contrail.pipeline.jobs.archive_reading import reading_of
from contrail.pipeline.jobs.message_frames import (
    COUNTED_COLUMN,
    archive_frame,
    archived_topics,
    live_frame,
    live_topics,
    local_url,
    store_frame,
    stored_topics,
)
from contrail.pipeline.jobs.progress import Progress, Silent
from contrail.pipeline.jobs.session import Spark, job_session
from contrail.pipeline.jobs.sql_output import (
    Output,
    is_one_file,
    require_free,
    streamed,
    table_rows,
    write,
)
from contrail.pipeline.jobs.sql_views import (
    Place,
    Relation,
    name_views,
    named_columns,
    named_relations,
    parse_relation,
    quote,
    rewrite,
    scanned_columns,
    statement,
)
from contrail.pipeline.jobs.summary import Summary
from contrail.pipeline.typed.bodies import ERROR_COLUMN, VALUE_COLUMN
from contrail.pipeline.typed.frames import bodies_of, with_typed_columns, without_body_options

TABLE_ROWS = 100
# A printed result passes through the driver by partitions; this many rows are a few MB.
_PRINTED_PARTITION_ROWS = 50_000
# Views have these columns only if a query names them, so that `select *` gives the source's.
_DERIVED = {
    "bodyText": "cast(body as string)",
    "json": "try_parse_json(cast(body as string))",
}
_TYPED = (VALUE_COLUMN, ERROR_COLUMN)
_ON_REQUEST = (*tuple(MESSAGE_COLUMNS)[len(DEFAULT_COLUMNS) :], *_DERIVED, *_TYPED)
_PARSED_PLACE = re.compile(r"\(line (\d+), pos (\d+)\)")
_MISSING = "TABLE_OR_VIEW_NOT_FOUND"
_SESSION_CONF = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.maxMetadataStringLength": "1000000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlSettings:
    """A query, the sources of its relations, and the form of its result.

    ``options`` are further options of the source for live topics, such as ``startingTimestamp``.
    """

    query: str
    namesrv: str = ""
    archive: str | None = None
    store_path: str | None = None
    output: Output = Output.TABLE
    out: str | None = None
    limit: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """An opened relation: its view, and the columns that are read."""

    relation: Relation
    name: str
    columns: tuple[str, ...]


def sql(
    settings: SqlSettings,
    *,
    spark: Spark | None = None,
    progress: Progress | None = None,
    emit: Callable[[str], object] = print,
) -> Summary:
    """Run a query. A table is in the summary; CSV and JSON without ``out`` go line by line to
    ``emit``.

    Raises:
        OptionInvalid: Spark refuses the query, or a relation does not exist.
    """
    check(settings)
    for relation in named_relations(settings.query):
        _require_there(relation, settings)
    progress = progress or Silent()
    with (
        job_session(spark, "contrail sql") as session,
        opened(session, settings) as (result, views),
    ):
        if settings.dry_run:
            return Summary("sql", "planned", _plan_facts(settings, result), _view_rows(views))
        progress.begin("query", None)
        try:
            return _run(settings, result, views, emit)
        finally:
            progress.end()


def check(settings: SqlSettings) -> None:
    """Refuse invalid settings before Spark is started."""
    statement(settings.query)
    if settings.output is Output.PARQUET and settings.out is None:
        raise OptionInvalid("parquet is not printed: say where to with --out")
    if settings.output is Output.TABLE and settings.out is not None:
        raise OptionInvalid("a table is printed: write with --output csv, json or parquet")
    if settings.out is not None:
        require_free(settings.out)


@contextmanager
def opened(spark: SparkSession, settings: SqlSettings) -> Iterator[tuple[DataFrame, list[View]]]:
    """The query's uncomputed result and its views, which are dropped at the end of the context."""
    query = statement(settings.query)
    # Spark's Python side logs a refused query with its stack, as JSON; the job prints one line.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    with (
        spark_settings(spark, _SESSION_CONF),
        tempfile.TemporaryDirectory(prefix="contrail-sql-") as folder,
    ):
        _require_query(spark, query)
        names: dict[Relation, str] = {}
        try:
            _find_relations(spark, query, settings, names, Path(folder))
            views = _plan_views(spark, query, names)
            with _files_that_stay(views, settings):
                for view in views:
                    _real(spark, view, settings).createOrReplaceTempView(quote(view.name))
                result = _analysed(spark, rewrite(query, names))
                yield (result if settings.limit is None else result.limit(settings.limit)), views
        finally:
            for name in names.values():
                spark.catalog.dropTempView(name)


def _run(
    settings: SqlSettings, result: DataFrame, views: list[View], emit: Callable[[str], object]
) -> Summary:
    if settings.output is Output.TABLE:
        row_count = TABLE_ROWS if settings.limit is None else settings.limit
        rows, is_cut = table_rows(result, row_count)
        facts: dict[str, object] = {"rows": len(rows)}
        if is_cut:
            facts["more"] = f"only the first {row_count:,} rows: see more with --limit"
        return Summary("sql", "done", facts, rows)
    if settings.out is not None:
        write(result, settings.output, settings.out)
        return Summary("sql", "done", {"out": settings.out}, _view_rows(views))
    for line in streamed(result, settings.output):
        emit(line)
    return Summary("sql", "done", {}, _view_rows(views))


def _plan_facts(settings: SqlSettings, result: DataFrame) -> dict[str, object]:
    columns = ", ".join(f"{one.name} {one.dataType.simpleString()}" for one in result.schema)
    facts: dict[str, object] = {"result": columns, "output": settings.output.value}
    if settings.out is not None:
        kind = "one file" if is_one_file(settings.out) else "a folder of files"
        facts["out"] = f"{settings.out} ({kind})"
    return facts


def _view_rows(views: list[View]) -> list[dict[str, object]]:
    return [{"reads": str(one.relation), "columns": ", ".join(one.columns)} for one in views]


# Relations.


def _find_relations(
    spark: SparkSession, query: str, settings: SqlSettings, names: dict[Relation, str], folder: Path
) -> None:
    """Fill ``names`` with the query's relations and their views, which are empty."""
    taken = [one.name for one in spark.catalog.listTables() if one.isTemporary]
    while (missing := _missing_relation(spark, rewrite(query, names))) is not None:
        if missing in names:
            raise OptionInvalid(f"{missing}: name it directly, behind FROM or JOIN")
        _require_there(missing, settings)
        for name in names.values():
            spark.catalog.dropTempView(name)
        # One more relation may change the name of another's view.
        names.update(name_views(query, [*names, missing], taken))
        for number, name in enumerate(names.values()):
            _empty(spark, query, settings, folder / f"{number}").createOrReplaceTempView(
                quote(name)
            )


def _missing_relation(spark: SparkSession, query: str) -> Relation | None:
    try:
        spark.sql(query).schema  # noqa: B018  a remote session analyses when it is asked
    except AnalysisException as error:
        if error.getCondition() != _MISSING:
            raise OptionInvalid(_line(error)) from error
        name = (error.getMessageParameters() or {}).get("relationName", "")
        relation = parse_relation(name)
        if relation is None:
            raise OptionInvalid(
                f"there is no table {name}: read topic.NAME, archive.NAME or store.NAME, with "
                "backquotes around a name that has other characters than letters, digits and _"
            ) from error
        return relation
    return None


def _require_there(relation: Relation, settings: SqlSettings) -> None:
    """Raises OptionInvalid if a relation's source is not given, or does not have the topic."""
    there, where = _topics_at(relation.place, settings)
    if relation.topic not in there:
        near = get_close_matches(relation.topic, there, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        # The name ends at this character, here and in Spark.
        if re.search(rf"\b{re.escape(str(relation))}[^\w\s`,;()]", settings.query):
            hint = (
                ": a name that has other characters than letters, digits and _ must be back quoted"
            )
        raise NotThere(f"{relation}: {where} has no topic {relation.topic!r}{hint}")


def _topics_at(place: Place, settings: SqlSettings) -> tuple[list[str], str]:
    if place is Place.ARCHIVE:
        archive = _given(settings.archive, place, "--archive DIR")
        return list(archived_topics(archive)), f"archive {archive}"
    if place is Place.STORE:
        store_path = _given(settings.store_path, place, "--store-path DIR")
        return stored_topics(store_path), f"store {store_path}"
    namesrv = _given(settings.namesrv, place, "--namesrv ADDRESSES")
    return live_topics(namesrv, without_body_options(settings.options)), f"the cluster of {namesrv}"


def _given(value: str | None, place: Place, option: str) -> str:
    if not value:
        raise OptionInvalid(f"the query reads {place}.…: say where that is with {option}")
    return value


# Reads.


def _plan_views(spark: SparkSession, query: str, names: dict[Relation, str]) -> list[View]:
    shown = _shown(query)
    stored = [column for column in shown if column in MESSAGE_COLUMNS]
    scanned = None if is_remote() else _scanned(spark, rewrite(query, names), stored)
    return [
        View(relation, name, _columns_of(f"{number}", stored, scanned))
        for number, (relation, name) in enumerate(names.items())
    ]


def _columns_of(
    folder: str, stored: list[str], scanned: dict[str, set[str]] | None
) -> tuple[str, ...]:
    if scanned is None:
        return tuple(stored)
    needed = scanned.get(folder, set())
    return tuple(column for column in stored if column in needed) or (COUNTED_COLUMN,)


def _scanned(spark: SparkSession, query: str, stored: list[str]) -> dict[str, set[str]]:
    plan = spark.sql(f"EXPLAIN\n{query}").collect()[0][0]
    return scanned_columns(plan, stored)


def _shown(query: str) -> list[str]:
    """The columns of a view, including unused columns, which stay null."""
    return [*DEFAULT_COLUMNS, *named_columns(query, _ON_REQUEST)]


def _empty(spark: SparkSession, query: str, settings: SqlSettings, folder: Path) -> DataFrame:
    """A view with the final columns, over no messages."""
    shown = _shown(query)
    schema = schema_of([column for column in shown if column in MESSAGE_COLUMNS])
    if is_remote():
        return _derived(spark.createDataFrame([], schema), shown, settings)
    folder.mkdir(parents=True, exist_ok=True)
    return _derived(spark.read.schema(schema).parquet(local_url(folder)), shown, settings)


def _real(spark: SparkSession, view: View, settings: SqlSettings) -> DataFrame:
    """The view over the messages. Unused columns are null, so that ``*`` and natural joins mean
    the same as over all columns."""
    shown = _shown(settings.query)
    frame = _frame(spark, view, settings)
    cells = [
        f.col(column)
        if column in view.columns
        else f.lit(None).cast(MESSAGE_COLUMNS[column]).alias(column)
        for column in shown
        if column in MESSAGE_COLUMNS
    ]
    return _derived(frame.select(*cells), shown, settings)


def _frame(spark: SparkSession, view: View, settings: SqlSettings) -> DataFrame:
    topic, columns = view.relation.topic, view.columns
    options = {}
    if settings.output is not Output.TABLE and settings.out is None:
        options["maxRecordsPerPartition"] = str(_PRINTED_PARTITION_ROWS)
    if view.relation.place is Place.ARCHIVE:
        return archive_frame(spark, settings.archive or "", topic, columns)
    if view.relation.place is Place.STORE:
        return store_frame(spark, settings.store_path or "", [topic], columns, options)
    # Only brokers apply pushed filters; a store folder is read without them.
    options |= {"pushdown": "true", **without_body_options(settings.options)}
    return live_frame(spark, settings.namesrv, [topic], columns, options)


@contextmanager
def _files_that_stay(views: list[View], settings: SqlSettings) -> Iterator[None]:
    """Lock out compactions between the listing of an archive's files and the last row."""
    if any(view.relation.place is Place.ARCHIVE for view in views):
        with reading_of(settings.archive or "").staying():
            yield
    else:
        yield


def _derived(frame: DataFrame, shown: list[str], settings: SqlSettings) -> DataFrame:
    bodies = bodies_of(settings.options) if set(_TYPED) & set(shown) else None
    if bodies is not None:
        frame = with_typed_columns(frame, bodies)
    expressions = [f"{_DERIVED[name]} as {name}" for name in shown if name in _DERIVED]
    return frame.selectExpr("*", *expressions)


# Spark.


def _require_query(spark: SparkSession, query: str) -> None:
    """Refuse a text that is no query before it is run: Spark runs a command at once.

    Only a query can be in parentheses. EXPLAIN parses it, and does not fail in its analysis.
    """
    try:
        spark.sql(f"EXPLAIN\n{query}").collect()
    except ParseException as error:
        raise OptionInvalid(_line(error)) from error
    except AnalysisException:
        pass  # A relation does not exist yet; the query is analysed again later.
    try:
        spark.sql(f"EXPLAIN SELECT * FROM (\n{query}\n)").collect()
    except ParseException as error:
        raise OptionInvalid(
            "only a query can be run: SELECT, WITH, FROM, TABLE or VALUES"
        ) from error
    except AnalysisException:
        pass


def _analysed(spark: SparkSession, query: str) -> DataFrame:
    try:
        return spark.sql(query)
    except AnalysisException as error:
        raise OptionInvalid(_line(error)) from error


def _line(error: AnalysisException) -> str:
    """Spark's error text in a line, without the name of the rule and the SQLSTATE."""
    text = (error.getMessage() or str(error)).partition("\n")[0].partition(" SQLSTATE:")[0]
    plain = text.partition("] ")[2] if text.startswith("[") else text
    return f"Spark refuses the query: {plain.strip().rstrip('.')}{_where(error)}"


def _where(error: AnalysisException) -> str:
    """The position at which the parser stopped; the first line was the added EXPLAIN."""
    found = _PARSED_PLACE.search(str(error)) if isinstance(error, ParseException) else None
    return f" (line {int(found[1]) - 1}, position {int(found[2]) + 1})" if found else ""
