"""docs/reference/api.md tells every route of the console."""

from __future__ import annotations

from scripts.console_api import PAGE, page


def test_the_page_of_the_api_is_as_the_table_of_routes() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m scripts.console_api"
