"""Tests that run with the fast path on and off; the fixture ``fast_path`` says which."""

from __future__ import annotations

import pytest

# For a test of a shortcut: without the fast path it has nothing to look at.
FAST_ONLY = pytest.mark.parametrize("fast_path", ["on"], indirect=True)
# For a file that is too slow to run both ways each time.
BOTH_WAYS_IN_MATRIX = ["on", pytest.param("off", marks=pytest.mark.matrix)]
