"""The services that drive the broker: timers, registration, persistence."""
