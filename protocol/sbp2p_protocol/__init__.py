"""The sbp2p wire and every decision on it, as machines without I/O."""
