"""Finished jobs: each a function that takes a Spark session and its own settings."""
