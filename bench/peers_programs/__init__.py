"""Java programs of the peers suite; they are compiled when the suite runs."""
