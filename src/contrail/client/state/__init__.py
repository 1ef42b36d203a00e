"""The client's decisions, without I/O: routes, queue choice, allocation, flow, retries."""
