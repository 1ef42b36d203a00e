"""Campaigns of crashes and damage: each takes a size and a seed and returns its figures."""
