"""What the NameServer decides; no I/O here."""
