"""The rules of the console, without I/O."""
