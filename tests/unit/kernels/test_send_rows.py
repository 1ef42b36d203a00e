"""The columns of send rows: the same for interpreted and for compiled kernels."""

from __future__ import annotations

import re
from pathlib import Path

from contrail.kernels import send_rows

BARE_ROWS = Path(send_rows.__file__).parent / "bare_rows.pxd"


def columns() -> dict[str, int]:
    named = {name: value for name, value in vars(send_rows).items() if name.isupper()}
    return {name: value for name, value in named.items() if isinstance(value, int)}


def test_each_column_has_a_number_of_its_own_and_a_row_has_room_for_all() -> None:
    numbers = sorted(columns().values())
    assert numbers == list(range(send_rows.ROW_NUMBERS + 1))
    assert max(columns(), key=columns().__getitem__) == "ROW_NUMBERS"


def test_compiled_kernels_have_the_same_columns() -> None:
    text = BARE_ROWS.read_text(encoding="utf-8")
    compiled = {name: int(number) for name, number in re.findall(r"^ +(\w+) = (\d+)$", text, re.M)}
    assert compiled == columns()
