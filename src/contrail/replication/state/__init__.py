"""Decides the bytes that each slave is sent, and the reports to believe; does no I/O."""
