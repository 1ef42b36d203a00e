"""One request family each: a request in, an answer out."""
