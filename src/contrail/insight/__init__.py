"""Facts of a cluster as rows, for the command line and the console alike."""
