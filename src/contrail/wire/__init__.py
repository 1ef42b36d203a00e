"""The only sockets: servers, connections and outbound callers."""
