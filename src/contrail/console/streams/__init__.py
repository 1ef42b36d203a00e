"""Answers that do not end: events."""
