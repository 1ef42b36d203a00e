"""``contrail replication detach``: makes a failover group member's folder a single broker's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from contrail.cli.output import AsJson, print_facts, print_json
from contrail.cli.store_folder import store_folder

Folder = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        callback=store_folder,
        help="The member's store folder, or one that has it as `store`.",
    ),
]


IndexSlots = Annotated[
    int | None,
    typer.Option(
        "--index-slots", min=1, help="maxHashSlotNum, if an index file has not 4 keys a slot."
    ),
]


def detach(folder: Folder, index_slots: IndexSlots = None, as_json: AsJson = False) -> None:
    """Take a stopped member's store out of its group: from then on it is a single broker's."""
    from contrail.store.detach import detach
    from contrail.store.inferred_config import inferred_config
    from contrail.store.reader import StoreReader

    reader = StoreReader.open(folder, index_slot_count=index_slots)
    found = detach(inferred_config(reader), batch_topics=reader.batch_topics)
    facts = {"folder": str(folder), **found._asdict()}
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)
