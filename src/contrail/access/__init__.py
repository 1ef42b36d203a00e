"""Access control: who may do what, decided from tables and requests alone."""
