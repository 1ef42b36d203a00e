"""Copies of a broker's log on other brokers: what a master sends, and what a slave makes of it."""
