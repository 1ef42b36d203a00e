"""``contrail replication init`` and ``replace``: a stopped broker's folder as a group's member."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from contrail.cli.output import AsJson, print_facts, print_json
from contrail.cli.replication_detach import IndexSlots
from contrail.cli.store_folder import store_folder
from contrail.errors import ConfigError

Folder = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        callback=store_folder,
        help="The stopped broker's store folder, or one that has it as `store`.",
    ),
]
_MEMBERS_MAX = 10_000


def init(
    folder: Folder,
    self_id: Annotated[
        str, typer.Option("--self-id", metavar="ID", help="Its dLegerSelfId in the group.")
    ] = "n0",
    index_slots: IndexSlots = None,
    as_json: AsJson = False,
) -> None:
    """Make a single broker's store that of the first member of a new failover group."""
    from contrail.replication.services.membership import found_group
    from contrail.store.inferred_config import inferred_config
    from contrail.store.reader import StoreReader

    number = self_id[1:]
    is_id = self_id[:1] == "n" and number.isascii() and number.isdecimal()
    if not is_id or int(number) >= _MEMBERS_MAX:
        raise ConfigError(f"--self-id {self_id!r} is no id of a member: take one like n0")
    reader = StoreReader.open(folder, index_slot_count=index_slots)
    config = inferred_config(reader)
    found = found_group(config, self_id, batch_topics=reader.batch_topics)
    _tell({"folder": str(folder), "self_id": self_id, **found._asdict()}, as_json)


def replace(
    folder: Folder,
    empty: Annotated[
        bool,
        typer.Option("--empty", help="Remove the log and all tables: it copies them anew."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Have a stopped member come back as another one: after a restored or damaged disk."""
    from contrail.replication.services.membership import replace_member
    from contrail.runtime.files import FileSystem

    found = replace_member(FileSystem(), folder, [folder / "commitlog"], empties=empty)
    _tell({"folder": str(folder), "is_emptied": empty, **found._asdict()}, as_json)


def _tell(facts: dict[str, object], as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)
