"""Identities, signatures and trust. No network, no trio."""
