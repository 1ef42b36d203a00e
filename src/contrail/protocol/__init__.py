"""Remoting as tables and state machines: the meaning of the bytes between peers."""
