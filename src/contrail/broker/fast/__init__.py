"""The fast path: every shortcut between socket and log. ``README.md`` lists the steps left out."""
