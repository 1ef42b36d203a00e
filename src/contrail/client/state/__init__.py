"""What the client decides without I/O: routes, queue choice, allocation, flow, retries."""
