"""The audit log: lines of bounded length in files of bounded number, newest read first."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrail.console.services.audit_log import FILES_MAX, AuditLine, AuditLog


def line(number: int, target: str = "") -> AuditLine:
    return AuditLine(number, "ada", "10.0.0.1", "log-in", target, "done")


@pytest.mark.proves("console.security.audit")
def test_lines_are_read_back_newest_first_over_the_rotation(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, file_bytes_max=500)
    for number in range(100):
        log.write(line(number))
    assert [one.at_ms for one in log.newest(6)] == [99, 98, 97, 96, 95, 94]
    files = sorted(tmp_path.iterdir())
    assert len(files) == FILES_MAX and all(one.stat().st_size <= 500 for one in files)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    log.write(line(1))
    with path.open("ab") as file:
        file.write(b'{"at_ms": 2, "acc\n')
    log.write(line(3))
    assert [one.at_ms for one in log.newest(10)] == [3, 1]


def test_a_line_is_one_line_and_short_whatever_it_tells(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    log.write(line(1, "evil\n" * 1_000))
    (raw,) = (tmp_path / "audit.jsonl").read_bytes().splitlines()
    assert len(raw) < 2_000


def test_a_log_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        AuditLog(tmp_path / "none" / "audit.jsonl").write(line(1))
