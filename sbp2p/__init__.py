"""sbp2p: peer-to-peer sharing of content-addressed model weights."""

__version__ = "0.1.0"
