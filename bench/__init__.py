"""Benchmarks: fixed workloads, each beside a reference measured in the same rounds."""
