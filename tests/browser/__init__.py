"""A real browser for tests of the console's page."""
