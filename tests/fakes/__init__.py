"""Stand-ins for the outside world; each passes the same contract test as the real thing."""
