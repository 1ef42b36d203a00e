"""``contrail pipeline``: one file per job, and their shared parts."""
