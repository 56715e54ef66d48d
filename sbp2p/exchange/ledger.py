"""What went to and came from each peer, of each version: counters, as long as the node runs.

Theory of operation: one account for each peer and root. Accounts are bounded: above ACCOUNTS_MAX
those that moved longest ago are added up into one for their root, and when there are too many roots
into one for everything, so that sums stay right whatever peers come and go.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from sbp2p.observe import Traffic

if TYPE_CHECKING:
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.cid import Cid

ACCOUNTS_MAX: Final = 4096
"""200 bytes each: 16 swarms of 256 peers."""


class Ledger:
    """Counters of payload by peer and root."""

    def __init__(self, accounts_max: int = ACCOUNTS_MAX) -> None:
        self._accounts: OrderedDict[tuple[PeerId | None, Cid | None], list[int]] = OrderedDict()
        self._most = accounts_max

    def sent(self, peer_id: PeerId, root: Cid | None, size: int) -> None:
        """Count a block that a peer was sent; the root is None if it may be of several."""
        account = self._account(peer_id, root)
        account[0] += size
        account[1] += 1

    def received(self, peer_id: PeerId, root: Cid, size: int) -> None:
        """Count a block that came from a peer and was right."""
        account = self._account(peer_id, root)
        account[2] += size
        account[3] += 1

    def traffic(self) -> tuple[Traffic, ...]:
        """Return every account, the one that moved last first."""
        return tuple(
            Traffic(
                peer_id=peer_id,
                root=root,
                bytes_sent=account[0],
                blocks_sent=account[1],
                bytes_received=account[2],
                blocks_received=account[3],
            )
            for (peer_id, root), account in reversed(self._accounts.items())
        )

    def _account(self, peer_id: PeerId | None, root: Cid | None) -> list[int]:
        key = (peer_id, root)
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = [0, 0, 0, 0]
            if len(self._accounts) > self._most:
                self._fold()
        self._accounts.move_to_end(key)
        return account

    def _fold(self) -> None:
        """Add the older half of the accounts up into fewer."""
        oldest = list(self._accounts)[: self._most // 2]
        roots = {root for _, root in self._accounts}
        for peer_id, root in oldest:
            counts = self._accounts.pop((peer_id, root))
            kept = root if len(roots) <= self._most // 4 else None
            into = self._accounts.setdefault((None, kept), [0, 0, 0, 0])
            for place, count in enumerate(counts):
                into[place] += count
