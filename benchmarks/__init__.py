"""Benchmarks: one module a claim, each against a peer in the same run, with the bytes checked."""
