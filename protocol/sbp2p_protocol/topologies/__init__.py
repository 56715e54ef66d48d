"""The topologies: which peers of a namespace exchange their models with which."""
