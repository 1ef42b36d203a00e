"""The web console: an HTTP API over a cluster, for its page and for scripts."""
