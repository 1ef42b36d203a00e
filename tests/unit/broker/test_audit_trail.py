"""The audit trail: lines in their order, over rotated files, for the owner alone."""

from __future__ import annotations

from pathlib import Path

from contrail.broker.services.audit_trail import DONE, FILE_NAME, REFUSED, AuditTrail, read_trail


def test_lines_come_back_in_their_order_over_rotated_files(tmp_path: Path) -> None:
    trail = AuditTrail(tmp_path, file_bytes_max=400)
    for number in range(30):
        outcome = DONE if number % 3 else REFUSED
        trail.write(number, outcome, f"user-{number % 2}", "127.0.0.1:1", f"change {number}")
    assert len(list(tmp_path.iterdir())) == 5
    found = [line["what"] for line in read_trail(tmp_path, 100)]
    assert found == [f"change {number}" for number in range(30 - len(found), 30)]
    assert [line["what"] for line in read_trail(tmp_path, 2)] == ["change 28", "change 29"]
    of_user = read_trail(tmp_path, 100, user="user-1", outcome=REFUSED)
    assert {line["user"] for line in of_user} == {"user-1"}
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o077 == 0


def test_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    trail = AuditTrail(tmp_path)
    trail.write(1, DONE, "a", "b", "first")
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(b'{"time": "2026\n')
    trail.write(2, DONE, "a", "b", "line\nbreaks stay in their line")
    assert [line["what"] for line in read_trail(tmp_path, 9)] == [
        "first",
        "line\nbreaks stay in their line",
    ]


def test_a_trail_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    AuditTrail(tmp_path / "missing").write(1, DONE, "a", "b", "c")
