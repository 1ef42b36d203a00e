"""The ``contrail`` command: one file per command group, each loaded when it is called."""
