"""Chaos: a failover group of real processes under faults, judged by the history checker."""
