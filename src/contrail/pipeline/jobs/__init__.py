"""The pipeline jobs: each a function that takes its settings and a Spark session."""
