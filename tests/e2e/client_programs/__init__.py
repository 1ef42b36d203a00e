"""Programs that use the client as programs do; each is run as a process of its own."""
