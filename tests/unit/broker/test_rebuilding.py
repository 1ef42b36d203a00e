"""The command that lets a diverged slave begin anew."""

from __future__ import annotations

from pathlib import PurePosixPath

from contrail.broker.state.rebuilding import rebuild_command

ROOT = PurePosixPath("/data/store")


def test_the_folder_is_moved_aside_with_all_that_lies_in_it() -> None:
    assert rebuild_command(ROOT, [ROOT / "commitlog"]) == "mv /data/store /data/store.diverged"


def test_a_log_on_other_disks_is_moved_too() -> None:
    others = [PurePosixPath("/fast disk/log"), PurePosixPath("/data/store-2")]
    assert rebuild_command(ROOT, others) == (
        "mv /data/store /data/store.diverged && mv '/fast disk/log' '/fast disk/log.diverged' "
        "&& mv /data/store-2 /data/store-2.diverged"
    )
