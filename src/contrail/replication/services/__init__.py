"""Carries out what ``state`` decides, over links and the store's door."""
