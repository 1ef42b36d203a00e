"""Request and response bodies: what each means, and its bytes."""
