"""Hostile input for every decoder: what is tried, what must hold, and who drives it."""
