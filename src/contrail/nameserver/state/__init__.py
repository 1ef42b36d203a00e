"""The NameServer's tables and rules; no I/O here."""
