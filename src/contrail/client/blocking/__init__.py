"""The clients without ``await``: one background event loop per process runs them all."""
