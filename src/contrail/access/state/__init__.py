"""Decides: users, rights, needs of requests, signatures. Does no I/O."""
