"""How large the row groups of Parquet files are that hold messages.

Whoever writes a row group gathers it in memory, and Spark's reader holds it whole. Writers look at
sizes only every hundred rows or more unless told otherwise: with bodies of a megabyte that alone is
more than a small JVM has.
"""

from __future__ import annotations

ROW_GROUP_BYTES = 32 << 20
# After how many rows a writer looks whether a page, a dictionary or a row group is full.
CHECKED_ROWS = 8

ROW_GROUPS = {
    "parquet.block.size": str(ROW_GROUP_BYTES),
    "parquet.block.size.row.check.min": str(CHECKED_ROWS),
    "parquet.page.size.row.check.min": str(CHECKED_ROWS),
}
