"""``contrail pipeline``: one file per job, and what they all share."""
