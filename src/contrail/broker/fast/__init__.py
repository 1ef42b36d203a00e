"""The fast path: every shortcut between socket and log. ``README.md`` says what each leaves out."""
