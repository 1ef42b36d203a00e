"""Request and response bodies: their values and their bytes."""
