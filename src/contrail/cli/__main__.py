"""``python -m contrail.cli`` is the ``contrail`` command."""

from contrail.cli.app import main

main()
