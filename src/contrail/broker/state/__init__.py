"""What the broker decides; no I/O here."""
