"""One peer that follows one root: what it wants, and what it is told of what is here.

    state      is told                                       becomes
    NEW        nothing yet                               SHOWN or TOLD, by `begin`
    TOLD       everything that is here, and every gain   -
    SHOWN      blocks that a super-seed picks for it     TOLD, once it may know that all are here

A gain is not told to a peer that does not want the block, or that is told by the transfer that
fetches it (`library`). Who has not said what it wants is taken to want everything.
"""

from __future__ import annotations

from array import array
from enum import Enum, auto
from typing import TYPE_CHECKING

import trio

from sbp2p_protocol.limits import EXCHANGE_HAVE_BATCH

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.cid import Cid
    from sbp2p_protocol.exchange_server import ExchangeServer

    from .library import Holdings, Library, Show


class FollowingState(Enum):
    """How a peer learns what is here."""

    NEW = auto()
    TOLD = auto()
    SHOWN = auto()


class Following:
    """One subscription. Is a `Follower`.

    Args:
        peer_id: who subscribed.
        server: the machine of the stream.
        subscription: its number.
        root: of the version.
        library: of what is here.
        wake: has the stream send what the machine has to say.
        interest: called when the peer may have begun, or ceased, to want something that is here;
            with True when it certainly does.
        grow: asked for memory, in bytes, for what the peer wants; says whether it may be had.
        peers_changed: called when other peers follow or serve the root than before.
    """

    def __init__(
        self,
        peer_id: PeerId,
        server: ExchangeServer,
        subscription: int,
        root: Cid,
        *,
        library: Library,
        wake: Callable[[], None],
        interest: Callable[[bool], None],
        grow: Callable[[int], bool],
        peers_changed: Callable[[], None],
    ) -> None:
        self.root = root
        self.state = FollowingState.NEW
        self.told_peers: set[PeerId] = set()
        """Whose records this peer was given."""
        self._peer_id = peer_id
        self._server = server
        self._subscription = subscription
        self._library = library
        self._wake = wake
        self._interest = interest
        self._grow = grow
        self._wants: bytearray | None = None
        self._wanted_count = 0
        self._gained = array("I")
        self.muted = False
        """Whether the peer may not hear what is here."""
        self._have_all = False
        self._have_some = False
        self._show: Show | None = None
        self._peers_changed = peers_changed

    @property
    def peer_id(self) -> PeerId:
        """Who it is."""
        return self._peer_id

    # -- what is here ---------------------------------------------------------------------------

    def begin(self, holdings: Holdings | None, show: Show | None) -> None:
        """Answer the subscription; `show` says what to show of a version that is here whole.

        It may be answered again when other rules hold.
        """
        if holdings is None:
            self.state = FollowingState.TOLD
            self._have_all = self._have_some = False
            del self._gained[:]
            self._server.send_not_found(self._subscription)
        elif holdings.bits is not None:
            self.told_bits(holdings.bits)
        elif show is None or self.state is FollowingState.TOLD:
            self.told_everything()
        elif self.state is FollowingState.NEW:
            self.state = FollowingState.SHOWN
            self._show = show
            self._have_all = True
            show.seed.joined(self)
            if self._wants is not None:
                show.seed.wants(self, 0, bytes(self._wants))
            self.shown_more()
        self._interest(False)

    def told_bits(self, bits: bytes) -> None:
        """These blocks are here, as a bitmap."""
        if self.muted:
            return
        self.state = FollowingState.TOLD
        self._have_some = True
        self._server.send_bits(self._subscription, bits)
        self._interest(False)
        self._wake()

    def told_blocks(self, indices: Sequence[int]) -> None:
        """These blocks are here, too."""
        if self.muted:
            return
        self._have_some = True
        wants = self._wants
        if wants is not None:
            size = len(wants)
            indices = [
                each for each in indices if each >> 3 < size and wants[each >> 3] >> (each & 7) & 1
            ]
        if not indices:
            return
        self._interest(True)
        if not self._library.is_told(self.root, self._peer_id):
            self._gained.extend(indices)
            self._wake()

    def told_everything(self) -> None:
        """Every block is here."""
        if self.muted:
            return
        self.state = FollowingState.TOLD
        self._have_all = True
        del self._gained[:]
        self._server.send_have_all(self._subscription)
        self._interest(False)
        self._wake()

    def shown_more(self) -> None:
        """More may be shown by super-seeding than before."""
        if self.state is not FollowingState.SHOWN or self._show is None:
            return
        if self.muted or self._server.choked:
            return
        seed, now = self._show.seed, trio.current_time()
        if seed.is_open(self, now):
            self.told_everything()
            return
        revealed = seed.reveal(self, now)
        if revealed:
            self._server.send_have(self._subscription, revealed)
            self._wake()

    def sent(self, digest: bytes, *, contended: bool) -> None:
        """Note a block that was sent to the peer, of whatever version."""
        if self._show is None:
            return
        index = self._show.table.index(digest)
        if index is None:
            return
        seed = self._show.seed
        before = seed.out_count
        if seed.knows(self):
            seed.sent(self, index, contended=contended)
        if before < len(self._show.table) == seed.out_count:
            self._library.show_more(self.root)
        else:
            self.shown_more()

    def paused(self) -> None:
        """The peer was choked: what it was shown is for others."""
        if self.state is FollowingState.SHOWN and self._show is not None:
            self._show.seed.paused(self)
            self._library.show_more(self.root)

    def check_time(self, now: float, *, idle: bool) -> None:
        """Look at what has been shown and not asked for; to be called about twice a second.

        Args:
            now: the time.
            idle: whether the peer is owed nothing.
        """
        if self.state is FollowingState.SHOWN and self._show is not None:
            seed = self._show.seed
            if idle:
                seed.unasked(self)
            else:
                seed.asking(self, now)
            if seed.expire(self, now):
                self._library.show_more(self.root)
            else:
                self.shown_more()

    # -- what the peer wants --------------------------------------------------------------------

    def take_wants(self, start: int, bits: bytes) -> None:
        """Note what the peer wants."""
        at, end = start // 8, start // 8 + len(bits)
        wants = self._wants if self._wants is not None else bytearray()
        if end > len(wants):
            if not self._grow(end - len(wants)):
                return  # it is then taken to want what it wanted before
            wants.extend(bytes(end - len(wants)))
        self._wants = wants
        self._wanted_count -= _count(wants[at:end])
        wants[at:end] = bits
        self._wanted_count += _count(bits)
        if self._show is not None and self._show.seed.knows(self):
            self._show.seed.wants(self, start, bits)
            self.shown_more()
        self._interest(False)

    def take_got(self, indices: Sequence[int]) -> None:
        """Note blocks that the peer has now."""
        wants = self._wants
        if wants is not None:
            for index in indices:
                at, mask = index >> 3, 1 << (index & 7)
                if at < len(wants) and wants[at] & mask:
                    wants[at] ^= mask
                    self._wanted_count -= 1
            if not self._wanted_count:
                self._interest(False)
        if self._show is not None and self._show.seed.knows(self):
            self._show.seed.got(self, indices)
            self.shown_more()
        self._library.peer_gained(self.root, self._peer_id, indices)

    def is_interested(self) -> bool:
        """Whether the peer wants something that is here."""
        if not (self._have_all or self._have_some):
            return False
        if self._wants is None or self._have_all:
            return self._wants is None or self._wanted_count > 0
        live = self._library.live(self.root)
        if live is None or not self._wanted_count:
            return self._wanted_count > 0
        have = int.from_bytes(live.to_bytes(), "little")
        return bool(have & int.from_bytes(self._wants, "little"))

    # -- other peers ----------------------------------------------------------------------------

    def peers_changed(self) -> None:
        """Other peers follow or serve the root than before."""
        self._peers_changed()

    # -- sending --------------------------------------------------------------------------------

    def flush(self) -> None:
        """Give a batch of gains to the machine."""
        if self._gained:
            batch = self._gained[:EXCHANGE_HAVE_BATCH]
            del self._gained[:EXCHANGE_HAVE_BATCH]
            self._server.send_have(self._subscription, batch)


def _count(bits: bytes | bytearray) -> int:
    return int.from_bytes(bits, "little").bit_count()
