"""``contrail store``: look into a store folder, check and repair it, print its messages.

Exit codes: 0 all is well or was repaired, 1 damage was found, 2 the input cannot be used, 5 the
folder has no such topic, queue or key.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from contrail.cli.exits import ExitCode
from contrail.cli.store_folder import store_folder
from contrail.errors import ContrailError, StoreCorrupt

if TYPE_CHECKING:
    from rich.console import Console

    from contrail.model.message import StoredMessage
    from contrail.store.reader import StoreReader
    from contrail.store.replace import ReplaceReport
    from contrail.store.verify import VerifyReport

app = typer.Typer(no_args_is_help=True, add_completion=False)

_DAMAGE = 1
_UNUSABLE = 2
_FINDINGS_SHOWN_MAX = 50
_BODY_SHOWN_MAX = 60
_TABLE_ROWS_MAX = 1000
_FOREVER_MS = (1 << 63) - 1

Folder = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        callback=store_folder,
        help="The folder of the store, or one that has it as `store`.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
LogPaths = Annotated[
    list[Path] | None,
    typer.Option(
        "--log-path", help="A folder of the commit log, if not DIR/commitlog; repeatable."
    ),
]
SegmentBytes = Annotated[
    int | None,
    typer.Option("--segment-bytes", help="The length segments must have; else as the files are."),
]
IndexSlots = Annotated[
    int | None,
    typer.Option("--index-slots", help="maxHashSlotNum, if an index file has not 4 keys a slot."),
]


class DumpFormat(StrEnum):
    """How messages are printed: a line for people, or a JSON object a line."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result of ``inspect``."""

    root: str
    written_by: str
    in_use: bool | None
    closed_cleanly: bool
    segment_bytes: int
    segments: int
    physical_min: int
    physical_end: int
    durable_end: int
    disk_bytes: int
    index_files: int
    first_store_timestamp_ms: int | None
    last_store_timestamp_ms: int | None
    message_count: int
    topics: dict[str, list[dict[str, Any]]]
    damage_hints: list[str]
    notes: list[str]


@app.callback()
def store() -> None:
    """Look into a store folder of Contrail or RocketMQ: live, stopped or copied."""


@app.command()
def inspect(
    folder: Folder,
    as_json: AsJson = False,
    log_path: LogPaths = None,
    segment_bytes: SegmentBytes = None,
    index_slots: IndexSlots = None,
) -> None:
    """Show sizes, offsets, queues and times. Reads little, writes nothing."""
    with _refusals():
        reader = _opened(folder, log_path, segment_bytes, index_slots)
        found = _inspected(reader)
    if as_json:
        # Not asdict: it would copy every queue, perhaps many thousand.
        told = {field.name: getattr(found, field.name) for field in fields(found)}
        typer.echo(json.dumps(told, indent=2))
    else:
        _print_inspection(found)
    raise typer.Exit(_DAMAGE if found.damage_hints else 0)


@app.command()
def verify(
    folder: Folder,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Rebuild damaged queues and index; the store must be stopped."
        ),
    ] = False,
    as_json: AsJson = False,
    log_path: LogPaths = None,
    segment_bytes: SegmentBytes = None,
    index_slots: IndexSlots = None,
    delay_levels: Annotated[
        str | None,
        typer.Option("--delay-levels", help="messageDelayLevel, if it is not RocketMQ's default."),
    ] = None,
) -> None:
    """Check every record, queue row and key; optionally rebuild derived files."""
    from contrail.model.delay_levels import DEFAULT_DELAY_LEVELS
    from contrail.store.verify import verify_store

    _require_at_least(1, {"--segment-bytes": segment_bytes, "--index-slots": index_slots})
    with _refusals(), _progress("verifying") as progress:
        report = verify_store(
            folder,
            repair=repair,
            progress=progress,
            log_folders=tuple(log_path or ()),
            segment_bytes=segment_bytes,
            index_slot_count=index_slots,
            delay_levels=delay_levels or DEFAULT_DELAY_LEVELS,
        )
    if as_json:
        typer.echo(report.to_json())
    else:
        _print_verification(report)
    raise typer.Exit(0 if report.is_sound else _DAMAGE)


@app.command()
def recover(
    folder: Folder,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Go on without messages that are damaged or missing; the cut-off bytes are kept.",
        ),
    ] = False,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace-damaged",
            help="First check every record, and replace each damaged one by a record of its "
            "length: records behind it stay. Its bytes are kept in DIR/contrail.lost.",
        ),
    ] = False,
    as_json: AsJson = False,
    log_path: LogPaths = None,
    segment_bytes: SegmentBytes = None,
    index_slots: IndexSlots = None,
) -> None:
    """Open a stopped store once, as a broker would, and report the repairs."""
    from contrail.store.inferred_config import inferred_config
    from contrail.store.log import MessageStore

    with _refusals():
        replaced = _replaced(folder, log_path, segment_bytes, index_slots) if replace else None
        reader = _opened(folder, log_path, segment_bytes, index_slots)
        config = inferred_config(reader, log_folders=tuple(log_path or ()))
        try:
            store = MessageStore.open(
                config, accept_loss=accept_loss, batch_topics=reader.batch_topics
            )
        except StoreCorrupt as corrupt:
            _complain(str(corrupt))
            raise typer.Exit(_DAMAGE) from None
        with store:
            report = {**asdict(store.recovery), "physical_end": store.physical_end}
    if replaced is not None:
        report |= {"replaced": replaced.as_dict()}
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        _print_recovery(report, folder)
    raise typer.Exit(_DAMAGE if replaced is not None and replaced.left else 0)


def _replaced(
    folder: Path, log_path: list[Path] | None, segment_bytes: int | None, index_slots: int | None
) -> ReplaceReport:
    """Replace damaged records, then repair the files derived from them."""
    from contrail.store.replace import replace_damaged
    from contrail.store.verify import verify_store

    folders = tuple(log_path or ())
    _require_at_least(1, {"--segment-bytes": segment_bytes, "--index-slots": index_slots})
    with _progress("checking") as progress:
        report = replace_damaged(
            folder,
            log_folders=folders,
            segment_bytes=segment_bytes,
            index_slot_count=index_slots,
            progress=progress,
        )
        if report.replaced:
            verify_store(
                folder,
                repair=True,
                progress=progress,
                log_folders=folders,
                segment_bytes=segment_bytes,
                index_slot_count=index_slots,
            )
    return report


@app.command()
def dump(
    folder: Folder,
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic, by queue.")] = None,
    queue: Annotated[int | None, typer.Option("--queue", help="Only this queue.")] = None,
    from_offset: Annotated[
        int, typer.Option("--from-offset", help="Begin at this queue offset.")
    ] = 0,
    key: Annotated[str | None, typer.Option("--key", help="Only messages with this key.")] = None,
    begin: Annotated[
        str | None, typer.Option("--begin", help="Stored at or after: ms, or 2026-01-31T12:00.")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--end", help="Stored at or before; as --begin.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", help="At most this many messages.")
    ] = None,
    internal: Annotated[
        bool, typer.Option("--internal", help="Also the broker's own topics and open transactions.")
    ] = False,
    output: Annotated[
        DumpFormat, typer.Option("--format", help="A line for people, or a JSON object a line.")
    ] = DumpFormat.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
    log_path: LogPaths = None,
    segment_bytes: SegmentBytes = None,
    index_slots: IndexSlots = None,
) -> None:
    """Print messages: all in log order, or those of a topic, queue, key or time."""
    _require_at_least(0, {"--limit": limit, "--queue": queue, "--from-offset": from_offset})
    _require_topic(topic, {"--queue": queue, "--from-offset": from_offset or None, "--key": key})
    with _refusals():
        reader = _opened(folder, log_path, segment_bytes, index_slots)
        begin_ms, end_ms = _moment(begin, 0, "--begin"), _moment(end, _FOREVER_MS, "--end")
        _require_there(reader, topic, queue)
        messages: Iterator[StoredMessage]
        if key is not None and topic is not None:
            found = reader.by_key(topic, key)
            if not found and not reader.damaged:
                _not_found(f"no message of topic {topic!r} has the key {key!r}")
            messages = (m for m in found if begin_ms <= m.store_timestamp_ms <= end_ms)
        else:
            messages = reader.messages(
                topic=topic,
                queue_id=queue,
                queue_offset_start=from_offset,
                begin_ms=begin_ms,
                end_ms=end_ms,
                internal=internal,
            )
        _write_messages(
            islice(messages, limit and min(limit, sys.maxsize)),
            as_json or output is DumpFormat.JSON,
        )
    for damage in reader.damaged:
        _complain(f"bytes {damage.physical_start} to {damage.physical_end}: {damage.reason}")
    raise typer.Exit(_DAMAGE if reader.damaged else 0)


# Input.


def _opened(
    folder: Path, log_path: list[Path] | None, segment_bytes: int | None, index_slots: int | None
) -> StoreReader:
    from contrail.store.reader import StoreReader

    _require_at_least(1, {"--segment-bytes": segment_bytes, "--index-slots": index_slots})
    return StoreReader.open(
        folder,
        segment_bytes=segment_bytes,
        log_folders=tuple(log_path or ()),
        index_slot_count=index_slots,
    )


@contextmanager
def _refusals() -> Iterator[None]:
    """Input that cannot be used becomes one line and exit code 2."""
    try:
        yield
    except BrokenPipeError:
        # The reader of our output has left; nothing must be flushed into the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except ContrailError as error:
        _refuse(str(error))
    except OSError as error:
        named = error.filename is not None
        _refuse(f"{error.filename} cannot be used: {error.strerror}" if named else str(error))


def _refuse(message: str) -> NoReturn:
    _complain(message)
    raise typer.Exit(_UNUSABLE)


def _require_there(reader: StoreReader, topic: str | None, queue: int | None) -> None:
    if topic is None:
        return
    if not reader.has_topic(topic):
        _not_found(
            f"{reader.root} has no topic {topic!r}: `contrail store inspect {reader.root}` shows "
            "those that it has"
        )
    there = sorted(reader.queue_ids(topic))
    if queue is not None and queue not in there:
        ids = ", ".join(map(str, there)) or "none"
        _not_found(f"topic {topic!r} has no messages in queue {queue}: it has queues {ids}")


def _not_found(message: str) -> NoReturn:
    _complain(message)
    raise typer.Exit(ExitCode.NOT_FOUND)


def _complain(message: str) -> None:
    typer.echo(f"contrail: {_shown(message)}", err=True)


def _require_topic(topic: str | None, options: dict[str, object]) -> None:
    given = [name for name, value in options.items() if value is not None]
    if topic is None and given:
        _refuse(f"{given[0]} needs --topic: say whose queue or key is meant")


def _require_at_least(lowest: int, options: dict[str, int | None]) -> None:
    for name, value in options.items():
        if value is not None and value < lowest:
            _refuse(f"{name} must be {lowest} or more, not {value}")


def _moment(text: str | None, default_ms: int, option: str) -> int:
    if text is None:
        return default_ms
    try:
        if text.removeprefix("-").isdecimal():
            return int(text)
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        _refuse(f"{option} {text!r} is no time: give milliseconds or 2026-01-31T12:00")


# Inspecting.


def _inspected(reader: StoreReader) -> Inspection:
    topics = reader.topics()
    queues = [queue for found in topics.values() for queue in found]
    firsts = [q.first_store_timestamp_ms for q in queues if q.first_store_timestamp_ms is not None]
    lasts = [q.last_store_timestamp_ms for q in queues if q.last_store_timestamp_ms is not None]
    problems = [problem for queue in reader.queues.values() for problem in queue.problems]
    ranges = dict.fromkeys([*reader.missing_ranges(), *reader.damaged])
    damaged = [f"bytes {d.physical_start} to {d.physical_end}: {d.reason}" for d in ranges]
    return Inspection(
        root=str(reader.root),
        written_by=_writer(reader),
        in_use=reader.is_in_use(),
        closed_cleanly=reader.was_clean,
        segment_bytes=reader.segment_bytes,
        segments=len(reader.segments),
        physical_min=reader.physical_min,
        physical_end=reader.physical_end,
        durable_end=min(reader.durable_end, reader.physical_end),
        disk_bytes=_disk_bytes(reader.root, [segment.path for segment in reader.segments]),
        index_files=len(reader.index_files()),
        first_store_timestamp_ms=min(firsts, default=None),
        last_store_timestamp_ms=max(lasts, default=None),
        message_count=sum(q.queue_offset_max - q.queue_offset_min for q in queues),
        topics={topic: [queue._asdict() for queue in found] for topic, found in topics.items()},
        damage_hints=[*reader.problems, *problems, *damaged],
        notes=list(reader.notes),
    )


def _writer(reader: StoreReader) -> str:
    if reader.known.log is not None:
        return "Contrail"
    if reader.known.apache is not None:
        return "RocketMQ"
    ours = any(path.is_file() for path in reader.root.glob("contrail.*"))
    return "not known: a checkpoint is missing or damaged" if ours else "not known yet"


def _disk_bytes(root: Path, segments: list[Path]) -> int:
    """The bytes that files occupy on disk; a file removed meanwhile counts 0."""
    total = 0
    inside = (os.path.join(at, name) for at, _, names in os.walk(root) for name in names)
    for path in {*inside, *map(str, segments)}:
        with suppress(FileNotFoundError):
            total += os.lstat(path).st_blocks * 512
    return total


def _print_inspection(found: Inspection) -> None:
    from rich.table import Table

    console = _console()
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(found):
        facts.add_row(name, value)
    console.print(facts)
    if sum(map(len, found.topics.values())) > _TABLE_ROWS_MAX:
        # A table measures every cell first; thousands of them would take half a minute.
        typer.echo("\n".join(_queue_lines(found)))
    elif found.topics:
        console.print(_queue_table(found))
    for hint in found.damage_hints:
        console.print(f"damage: {_shown(hint)}", style="red")
    for note in found.notes:
        console.print(f"note: {_shown(note)}", style="yellow")
    if found.damage_hints:
        console.print("Run `contrail store verify` to learn what can be repaired.")


def _facts(found: Inspection) -> Iterator[tuple[str, str]]:
    state = {True: "in use", False: "not in use", None: "unknown whether in use"}[found.in_use]
    exit_words = "closed in order" if found.closed_cleanly else "not closed in order"
    yield "folder", _shown(found.root)
    yield "written by", found.written_by
    yield "state", state if found.in_use else f"{state}, {exit_words}"
    yield (
        "commit log",
        (
            f"{found.segments} segments of {_size(found.segment_bytes)}, "
            f"bytes {found.physical_min:,} to {found.physical_end:,}"
        ),
    )
    yield "certainly durable", f"up to byte {found.durable_end:,}"
    yield "on disk", _size(found.disk_bytes)
    yield "index files", str(found.index_files)
    yield "messages in queues", f"{found.message_count:,}"
    yield "first stored", _time(found.first_store_timestamp_ms)
    yield "last stored", _time(found.last_store_timestamp_ms)


_QUEUE_COLUMNS = ("topic", "queue", "min", "max", "first stored", "last stored")


def _queue_table(found: Inspection) -> Any:
    from rich.table import Table

    table = Table(*_QUEUE_COLUMNS)
    for cells in _queue_cells(found):
        table.add_row(*cells)
    return table


def _queue_lines(found: Inspection) -> Iterator[str]:
    width = max(len(_shown(topic)) for topic in found.topics)
    for topic, *cells in [_QUEUE_COLUMNS, *_queue_cells(found)]:
        queue, lowest, highest, first, last = cells
        yield f"{topic:<{width}} {queue:>6} {lowest:>14} {highest:>14}  {first:<19}  {last}"


def _queue_cells(found: Inspection) -> Iterator[tuple[str, ...]]:
    for topic, queues in found.topics.items():
        for queue in queues:
            yield (
                _shown(topic),
                str(queue["queue_id"]),
                f"{queue['queue_offset_min']:,}",
                f"{queue['queue_offset_max']:,}",
                _time(queue["first_store_timestamp_ms"], "seconds"),
                _time(queue["last_store_timestamp_ms"], "seconds"),
            )


# Recovering.


def _print_recovery(report: dict[str, Any], folder: Path) -> None:
    console = _console()
    exit_words = "closed in order" if report["was_clean"] else "not closed in order"
    if "replaced" in report:
        _print_replaced(console, report["replaced"])
    looked_at = (
        f"{report['record_count']:,} records ({_size(report['scanned_bytes'])}) were verified in "
        f"{report['elapsed_ms']:,} ms"
    )
    if not report["record_count"]:
        looked_at = "Opening it looked at no record, and says nothing of what is in the log"
    console.print(
        f"The store was {exit_words}. {looked_at}; the log ends at byte {report['physical_end']:,}."
    )
    if not report["record_count"] and report["physical_end"] and "replaced" not in report:
        command = f"contrail store verify {folder}"
        console.print(f"Run `{_shown(command)}` to check every record.", style="yellow")
    if report["cut_at"] is not None:
        console.print(f"Cut off behind byte {report['cut_at']:,}: {report['cut_bytes']:,} bytes.")
    for problem in report["problems"]:
        console.print(f"note: {_shown(problem)}", style="yellow")


def _print_replaced(console: Console, found: dict[str, Any]) -> None:
    console.print(
        f"{found['record_count']:,} sound records ({_size(found['bytes_checked'])} of the log) "
        f"were checked; {len(found['replaced'])} damaged ones were replaced."
    )
    for one in found["replaced"][:_FINDINGS_SHOWN_MAX]:
        whose = "nobody knows which message was there"
        if one["topic"] is not None:
            whose = f"message {one['queue_offset']} of queue {one['queue_id']} of {one['topic']}"
        place = f"bytes {one['physical_start']} to {one['physical_end']}"
        console.print(_shown(f"replaced: {place}: {whose}"), style="yellow")
    if len(found["replaced"]) > _FINDINGS_SHOWN_MAX:
        console.print(f"... and {len(found['replaced']) - _FINDINGS_SHOWN_MAX} more")
    for path in found["kept_files"][:_FINDINGS_SHOWN_MAX]:
        console.print(_shown(f"kept: {path}"))
    for line in found["left"]:
        console.print(_shown(f"still damaged: {line}"), style="red")


# Verifying.


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = (what, BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print_verification(report: VerifyReport) -> None:
    console = _console()
    seconds = report.elapsed_ms / 1000
    console.print(
        f"{report.record_count:,} records ({_size(report.bytes_checked)}), "
        f"{report.row_count:,} rows of {report.queue_count:,} queues and "
        f"{report.key_count:,} keys checked in {seconds:.1f} s"
    )
    lines = list(_findings(report))
    for line in lines[:_FINDINGS_SHOWN_MAX]:
        console.print(_shown(line), style="red")
    if len(lines) > _FINDINGS_SHOWN_MAX:
        console.print(f"... and {len(lines) - _FINDINGS_SHOWN_MAX} more; --json lists all")
    for note in report.notes:
        console.print(f"note: {_shown(note)}", style="yellow")
    console.print(_verdict(report, bool(lines)))


def _findings(report: VerifyReport) -> Iterator[str]:
    for damage in report.log:
        whose = ""
        if damage.topic is not None:
            whose = f", message {damage.queue_offset} of queue {damage.queue_id} of {damage.topic}"
        yield f"log: bytes {damage.physical_start} to {damage.physical_end}: {damage.reason}{whose}"
    for queue in report.queues:
        counts = f"{queue.missing} rows missing, {queue.wrong} wrong, {queue.extra} too many"
        more = "".join(f"; {problem}" for problem in queue.problems)
        fixed = " (rebuilt)" if queue.repaired else ""
        yield f"queue {queue.queue_id} of {queue.topic}: {counts}{more}{fixed}"
    for file in report.index:
        yield f"index file {file.file}: {file.problem}{' (rebuilt)' if file.repaired else ''}"
    yield from (f"file: {problem}" for problem in report.files)
    yield from (f"given up: {problem}" for problem in report.given_up)
    yield from (f"deleted messages: {problem}" for problem in report.returned)


def _verdict(report: VerifyReport, found: bool) -> str:
    if report.is_sound:
        return "All damage was repaired." if found else "The store is sound."
    if report.log:
        return (
            "Damage in the log cannot be rebuilt: restore those segments from a copy, or stop the "
            f"broker and run `contrail store recover {report.root} --replace-damaged` to go on "
            "without these messages."
        )
    is_left = any(not queue.repaired for queue in report.queues)
    if is_left or any(not file.repaired for file in report.index):
        return (
            "Stop the broker and run `contrail store verify --repair` to rebuild what is damaged."
        )
    if report.files:
        return "Move away or restore the files named above."
    if report.returned:
        return "Delete the topics named above once more, or restore the folder from a copy."
    return "Derived files are rebuilt, except for the messages named above."


# Dumping.


def _write_messages(messages: Iterator[StoredMessage], as_json: bool) -> None:
    write = _json_line if as_json else _text_line
    for message in messages:
        sys.stdout.write(write(message) + "\n")
    sys.stdout.flush()


def _text_line(message: StoredMessage) -> str:
    properties = message.properties
    labels = [
        f"{name}={properties[name]}" for name in ("TAGS", "KEYS", "UNIQ_KEY") if name in properties
    ]
    body = message.body[:_BODY_SHOWN_MAX].decode("utf-8", "replace")
    more = f"... ({len(message.body)} bytes)" if len(message.body) > _BODY_SHOWN_MAX else ""
    place = f"{message.topic}/{message.queue_id}@{message.queue_offset}"
    when = _time(message.store_timestamp_ms)
    return _shown(f"{message.physical_offset:>12} {when} {place} {' '.join(labels)} {body}{more}")


def _json_line(message: StoredMessage) -> str:
    from contrail.model.host import unpack_host

    return json.dumps(
        {
            "topic": message.topic,
            "queueId": message.queue_id,
            "queueOffset": message.queue_offset,
            "physicalOffset": message.physical_offset,
            "recordBytes": message.record_bytes,
            "storeTimestamp": message.store_timestamp_ms,
            "bornTimestamp": message.born_timestamp_ms,
            "bornHost": str(unpack_host(message.born_host)),
            "storeHost": str(unpack_host(message.store_host)),
            "flag": message.flag,
            "sysFlag": message.sys_flag,
            "reconsumeTimes": message.reconsume_times,
            "preparedTransactionOffset": message.prepared_transaction_offset,
            "properties": message.properties,
            "bodyBase64": base64.b64encode(message.body).decode(),
        },
        ensure_ascii=False,
    )


# Words.


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, markup=False, soft_wrap=True)


def _shown(text: str) -> str:
    """Text from a file, without characters that move the cursor or change colours."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _size(byte_count: int) -> str:
    size = float(byte_count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:,.0f} bytes" if unit == "bytes" else f"{size:,.1f} {unit}"


def _time(timestamp_ms: int | None, precision: str = "milliseconds") -> str:
    if timestamp_ms is None:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000)
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
    return moment.isoformat(" ", precision)
