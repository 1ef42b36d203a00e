"""What drives the broker: timers, registration, persistence."""
