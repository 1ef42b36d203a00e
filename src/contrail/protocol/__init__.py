"""Remoting as tables and state machines: what the bytes between peers mean."""
