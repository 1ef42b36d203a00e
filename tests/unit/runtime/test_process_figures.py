"""The operating system's figures about a process."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from contrail.runtime.process_figures import process_figures


def test_the_figures_of_this_process_are_read() -> None:
    figures = process_figures()
    assert figures.cpu_seconds > 0
    assert figures.resident_bytes is not None and figures.virtual_bytes is not None
    assert 1 << 20 < figures.resident_bytes <= figures.virtual_bytes
    assert figures.max_fds == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_an_opened_file_counts() -> None:
    before = process_figures().open_fds
    with Path(os.devnull).open("rb"):
        now = process_figures().open_fds
    assert before is not None and now == before + 1


def test_a_process_name_with_spaces_and_parentheses_is_skipped(tmp_path: Path) -> None:
    fields = ["S", *(str(number) for number in range(1, 40))]
    fields[19], fields[20], fields[21] = "250", "4096", "3"
    (tmp_path / "self" / "fd").mkdir(parents=True)
    (tmp_path / "self" / "stat").write_text(f"7 (a ) b) {' '.join(fields)}\n")
    (tmp_path / "stat").write_text("cpu 1 2\nbtime 1000\nprocesses 4\n")
    figures = process_figures(tmp_path)
    assert figures.started_s == 1000 + 250 / os.sysconf("SC_CLK_TCK")
    assert figures.virtual_bytes == 4096
    assert figures.resident_bytes == 3 * resource.getpagesize()


def test_a_system_without_proc_gives_the_figures_it_has(tmp_path: Path) -> None:
    figures = process_figures(tmp_path / "nothing")
    assert figures.cpu_seconds > 0
    assert figures[1:5] == (None, None, None, None)
