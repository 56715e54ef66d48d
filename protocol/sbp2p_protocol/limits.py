"""Every bound on what a peer may make this side hold, compute or wait for.

One module, so that one reading tells what a hostile peer can cost. Each constant states its unit
and why it has this value; where other implementations chose one, theirs stands beside it.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# -- blocks -------------------------------------------------------------------------------------

BLOCK_MAX: Final = 1 * MIB
"""Bytes in a leaf block. Bitswap and gateways refuse 2 MiB; libtorrent's usual piece is 1-4 MiB."""

NODE_BLOCK_MAX: Final = 1 * MIB
"""Bytes in a dag-pb or dag-cbor block; the same bound lets any block travel in one frame."""
