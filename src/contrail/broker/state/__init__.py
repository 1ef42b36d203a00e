"""The broker's decisions; no I/O here."""
