"""Programs around other clients; each runs alone, where its client is installed."""
