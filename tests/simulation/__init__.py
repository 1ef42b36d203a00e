"""Simulated failover groups: one thread, a seeded clock, network and disks; a seed replays."""
