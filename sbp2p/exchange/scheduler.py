"""Who is asked for which block: the picker's choices, given to sessions, and what comes of them.

Theory of operation. A session is refilled when it has room for a good part of its window, so that
requests go out in batches. What a peer does with a request decides what happens to the block:

    sent, right      written; others that were asked for it are told to forget it
    sent, wrong      the peer is banned; the block is asked of somebody else
    rejected         asked of somebody else; the peer is paused (busy) or no longer said to have it
    stalled          asked of somebody else; if it comes late it is still taken
    peer left        asked of somebody else

A copy that arrives while another is being verified is dropped.

A peer that has nothing else to do could send a block that another owes. Then the other is asked to
give the request back (`recall`), if it would take clearly longer: it does so unless it is sending
the block already, so nothing is sent twice. Only in the endgame, and only a block that is not
coming forth, is asked of two.

Peers that say what they want and gain (`tells`) are told what is wanted here at first, and what is
gained since: at once if they follow the root here and lack the block, otherwise with the next
request or within half a second. So this node need not tell them as their follower.

`hope` says whether anything may still come: a block is on its way, being verified, or can be asked
of a peer that answers. `nobody_will` says that there is nothing to wait for, either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from sbp2p_protocol.exchange_events import (
    BitsArrived,
    BlockArrived,
    BlocksGained,
    Choked,
    EverythingGained,
    Rejected,
    RootMissing,
)
from sbp2p_protocol.exchange_messages import RejectReason
from sbp2p_protocol.picker import Picker

from .lost import LostBlocks
from .signal import Signal
from .source import Source
from .writer import ReceivedBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from random import Random

    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.bitmap import Bitmap
    from sbp2p_protocol.blocktable import BlockTable
    from sbp2p_protocol.cid import Cid
    from sbp2p_protocol.exchange_events import ClientEvent
    from sbp2p_protocol.exchange_frames import Payload
    from sbp2p_protocol.picking import Picking

    from .library import Library
    from .session import PeerSession
    from .uploads import Uploads
    from .writer import BlockSender

_PAUSE_S: Final = 0.1
"""Pause after a busy peer's first reject; doubles with each further one."""
_PAUSE_MAX_S: Final = 10.0
_LIES_MAX: Final = 1024
"""Blocks a peer may have said it had and not have. A file that changed under an honest seed loses
it some blocks; one that lost this many is of little use and is let go, not banned."""
_LIES_PER_BLOCK: Final = 16
"""How many more it may lack for each block that it had: of ten files it may have lost nine."""
_IDLE_BLOCKS: Final = 1
"""Blocks that a peer may owe and still count as having nothing else to do."""
_RECALLS_MAX: Final = 2
"""Requests that are called back at once for one such peer."""
_RECALLS_EACH: Final = 2
"""Times that one block is called back; after that it comes from whoever has it on order."""
_RECALL_GAIN_S: Final = 0.2
_DUPLICATE_GAIN_S: Final = 1.0
"""Time that a block must be expected sooner by, to call it back, or to ask a second peer."""
_GOT_DELAY_S: Final = 0.5
"""How long a peer that is in no hurry to know waits to hear what was gained here."""
_PICK_MAX: Final = 64
"""Blocks picked at once: bounds the time of one refill."""


class BlockScheduler:
    """Gets the missing blocks of one version from any number of sessions. Is a `Transfer`."""

    def __init__(
        self,
        root: Cid,
        table: BlockTable,
        missing: Bitmap,
        *,
        sessions: Mapping[PeerId, PeerSession],
        library: Library,
        uploads: Uploads,
        ban_score: int,
        picking: Picking,
        rng: Random,
        found: Callable[[Source], None],
        on_verified: Callable[[int, int], None],
    ) -> None:
        self.picker: Picker[PeerId] = Picker(missing, rng, picking=picking)
        self.root = root
        self.done = trio.Event()
        self.bytes_useless = 0
        """Payload that was received and dropped: duplicates and wrong blocks."""
        self._table = table
        self._average = max(1, table.total_bytes // max(1, len(table)))
        self._sessions = sessions
        self._library = library
        self._uploads = uploads
        self._found = found
        self._got_told = trio.current_time()
        self._ban_score = ban_score
        self._on_verified = on_verified
        self._writing: set[int] = set()
        self._recalls: dict[int, int] = {}
        self._relievers: dict[int, PeerId] = {}
        """Blocks that were called back: how often, and who is to be asked instead."""
        self._web: set[PeerId] = set()
        self._lost: LostBlocks[PeerId] = LostBlocks(len(table))
        self._news = Signal()
        if not missing.any():
            self.done.set()

    # -- sessions -------------------------------------------------------------------------------

    def joined(self, session: PeerSession) -> None:
        """Follow what a peer has."""
        self.picker.peer_joined(session.peer_id)
        client = session.client
        session.subscription = client.subscribe(self.root, len(self._table))
        if client.tells:
            client.tell_wants(session.subscription, self.picker.missing_bits())
        session.wake()

    def left(self, session: PeerSession) -> None:
        """Give what a peer owed to others."""
        if session.greeted and self.picker.knows(session.peer_id):
            freed = self.picker.peer_left(session.peer_id)
            self._news.fire()
            if freed:
                self.refill_all()

    def take(self, session: PeerSession, event: ClientEvent) -> ReceivedBlock | None:
        """Take an event; a block is returned if it should be verified and written."""
        peer = session.peer_id
        match event:
            case BlockArrived():
                return self._arrived(session, event)
            case BitsArrived(_, start, bits):
                self.picker.bits_gained(peer, start, self._lost.without(peer, start, bits))
                self._settle(session)
            case BlocksGained(_, indices):
                for index in indices:
                    self._lost.regained(peer, index)
                    self.picker.block_gained(peer, index)
            case EverythingGained():
                if peer in self._lost:
                    self.picker.bits_gained(peer, 0, self._lost.everything_but(peer))
                else:
                    self.picker.everything_gained(peer)
                self._settle(session)
            case Rejected():
                self._rejected(session, event)
            case Choked(choked):
                if not choked:
                    self.refill(session)
            case RootMissing():
                self._nothing_there(session)
            case _:
                pass
        return None

    def _nothing_there(self, session: PeerSession) -> None:
        """Forget what a peer was said to have; it stays subscribed, and tells when it has more."""
        freed = self.picker.peer_left(session.peer_id)
        self.picker.peer_joined(session.peer_id)
        self._news.fire()
        if freed:
            self.refill_all()

    def _settle(self, session: PeerSession) -> None:
        # a small version at once; a large one in slices, by `run`
        if self.picker.settle():
            self.refill(session)
        else:
            self._news.fire()

    async def run(self) -> None:
        """Work off long news in slices, so that the event loop stays free."""
        while True:
            await self._news.wait()
            while not self.picker.settle():
                await trio.lowlevel.checkpoint()
            self.refill_all()

    # -- asking ---------------------------------------------------------------------------------

    def refill(self, session: PeerSession) -> None:
        """Ask a peer for as much as it has room for, if that is worth a message."""
        client = session.client
        room = client.room()
        # a third of the window at a time: each message, and each batch it becomes at the other end,
        # costs both sides as much as two blocks do
        if room < client.pipeline.window // 3 or not session.usable:
            return
        now = trio.current_time()
        if now < session.paused_until or not self.picker.knows(session.peer_id):
            return
        asked: list[tuple[bytes, int]] = []
        limit = min(client.room_requests(), _PICK_MAX)
        while room > 0 and len(asked) < limit:
            count = min(max(1, room // self._average), limit - len(asked))
            picked = self.picker.pick(session.peer_id, count)
            for index in picked:
                length = self._table.length(index)
                asked.append((self._table.digest(index), length))
                room -= length
            if len(picked) < count:
                break
        if not asked and client.owed_blocks <= _IDLE_BLOCKS and self.picker.endgame:
            asked = self._relieve(session, now)
        if asked:
            self._tell_got(session)
            client.request(asked, now)
            session.wake()

    def _relieve(self, session: PeerSession, now: float) -> list[tuple[bytes, int]]:
        """Have blocks that others owe and this peer would bring sooner called back, or return one.

        What is returned is to be asked for, although another owes it.
        """
        client, table = session.client, self._table
        rate = client.pipeline.best_rate

        def ours(length: int) -> float:
            # one that was never measured is given the benefit of the doubt
            return client.pipeline.rtt_s + ((client.owed_bytes + length) / rate if rate else 0.0)

        recalled = 0
        last: int | None = None
        for index, owner in self.picker.others_in_flight(session.peer_id):
            other = self._sessions.get(owner)
            if other is None or index in self._writing:
                continue
            digest, length = table.digest(index), table.length(index)
            gain = other.client.expected_wait(digest, now) - ours(length)
            if gain < _RECALL_GAIN_S:
                continue
            often = self._recalls.get(index, 0)
            if often < _RECALLS_EACH and other.client.may_give_back(digest, now):
                if not other.client.recall([digest]):
                    continue
                self._recalls[index] = often + 1
                self._relievers[index] = session.peer_id
                other.wake()
                recalled += 1
                if recalled == _RECALLS_MAX:
                    return []
            elif gain >= _DUPLICATE_GAIN_S and last is None:
                last = index
        final = self.picker.in_flight_count == self.picker.missing_count
        if recalled or last is None or not final or client.owed_blocks:
            return []
        if not self.picker.ask_another(session.peer_id, last):
            return []
        return [(table.digest(last), table.length(last))]

    def refill_all(self) -> None:
        """Look at every session for room, ends of pauses, and the endgame."""
        for session in list(self._sessions.values()):
            self.refill(session)

    def tick(self, now: float) -> None:
        """Look at the time, about ten times a second."""
        self.refill_all()
        if now - self._got_told >= _GOT_DELAY_S:
            self._got_told = now
            for session in self._sessions.values():
                self._tell_got(session)
                session.wake()
                self._uploads.owes(session.peer_id, owing=session.client.owed_blocks > 0)

    # -- what others hear -----------------------------------------------------------------------

    def _tell_gained(self, index: int) -> None:
        """Tell peers of a block that is here now."""
        root, picker = self.root, self.picker
        for peer, session in self._sessions.items():
            if session.subscription is None or not session.client.tells:
                continue
            session.gained.append(index)
            if (
                picker.knows(peer)
                and not picker.has(peer, index)
                and self._library.follows(root, peer)
            ):
                self._tell_got(session)
                session.wake()

    def _tell_got(self, session: PeerSession) -> None:
        if session.gained and session.subscription is not None and not session.client.closed:
            session.client.tell_got(session.subscription, session.gained)
            session.gained.clear()

    def follower_came(self, peer_id: PeerId) -> None:
        """A peer follows the same root: it may have some of it."""
        self._found(Source(peer_id, learned=True))

    def peer_found(self, source: Source) -> None:
        """Somebody says that a peer has to do with the root."""
        self._found(source)

    def peer_gained(self, peer_id: PeerId, indices: Sequence[int]) -> None:
        """A follower says that it has these blocks now."""
        session = self._sessions.get(peer_id)
        if session is None or not self.picker.knows(peer_id):
            return  # it tells what it has when it is asked
        size = len(self._table)
        for index in indices:
            if index < size:
                self.picker.block_gained(peer_id, index)
        self.refill(session)

    def tells(self, peer_id: PeerId) -> bool:
        """Whether a follower is told of gains from here, so that nobody else needs to."""
        session = self._sessions.get(peer_id)
        return session is not None and session.subscription is not None and session.client.tells

    def peers(self) -> Iterable[PeerId]:
        """Return the peers that are asked."""
        return [peer for peer, session in self._sessions.items() if session.usable]

    # -- stalls ---------------------------------------------------------------------------------

    def stalled(self, session: PeerSession, digests: tuple[bytes, ...]) -> None:
        """Give what a peer owes to others; what comes late is still taken."""
        self._release(session, digests)

    @property
    def hope(self) -> bool:
        """Whether a block is on its way, is being verified, or can be asked for now."""
        if self.picker.in_flight_count or self._writing:
            return True
        return self._can_ask()

    def _can_ask(self) -> bool:
        return any(
            session.usable
            and self.picker.knows(session.peer_id)
            and self.picker.interesting(session.peer_id)
            for session in self._sessions.values()
        )

    @property
    def peers_can(self) -> bool:
        """Whether peers owe a block or can be asked for one; what web seeds do does not count."""
        of_web = sum(len(self.picker.in_flight_of(key)) for key in self._web)
        return self.picker.in_flight_count > of_web or self._can_ask()

    @property
    def nobody_will(self) -> bool:
        """Whether every peer here has shown that it lacks what is left, so waiting is of no use."""
        missing = self.picker.missing_bits()
        return all(
            session.usable and self._lost.covers(session.peer_id, missing)
            for session in self._sessions.values()
        )

    # -- web seeds ------------------------------------------------------------------------------

    def web_joined(self, key: PeerId) -> None:
        """Somebody who has everything is at work, and takes what it wants by `pick_run`."""
        self._web.add(key)
        self.picker.peer_joined(key)
        self.picker.everything_gained(key)

    def web_left(self, key: PeerId) -> None:
        """It rests."""
        self.picker.peer_left(key)
        self._web.discard(key)
        self.refill_all()

    def pick_run(self, key: PeerId, most_bytes: int) -> list[int]:
        """Choose blocks that follow each other, of about so many bytes; they are in flight then."""
        return self.picker.pick_run(key, max(1, most_bytes // self._average))

    def give_back(self, key: PeerId, indices: Iterable[int]) -> None:
        """These did not come."""
        freed = [self.picker.released(key, index) for index in indices]
        if any(freed):
            self.refill_all()

    # -- answers --------------------------------------------------------------------------------

    def _arrived(self, session: PeerSession, event: BlockArrived) -> ReceivedBlock | None:
        index = self._index(event.digest)
        session.pauses = 0
        return self.received(session, index, event.parts, event.length)

    def received(
        self, sender: BlockSender, index: int, parts: Payload, length: int
    ) -> ReceivedBlock | None:
        """Take a block from whomever; it is returned if it should be verified and written."""
        if not self.picker.is_missing(index) or index in self._writing:
            self.bytes_useless += length
            self.picker.released(sender.peer_id, index)
            return None
        self._writing.add(index)
        return ReceivedBlock(index, parts, length, sender)

    def verified(self, block: ReceivedBlock) -> None:
        """A block was right and is written."""
        self._writing.discard(block.index)
        self._recalls.pop(block.index, None)
        self._relievers.pop(block.index, None)
        block.session.tally.blocks_verified += 1
        if block.session.peer_id not in self._web:
            self._uploads.received(block.session.peer_id, block.length)
            self._library.ledger.received(block.session.peer_id, self.root, block.length)
        digest = self._table.digest(block.index)
        for peer in self.picker.done(block.index):
            other = self._sessions.get(peer)
            if other is not None and other.client.owes(digest):
                other.client.cancel([digest])
                other.wake()
        self._on_verified(block.index, block.length)
        self._tell_gained(block.index)
        if not self.picker.missing_count:
            self.done.set()
        elif self.picker.endgame:
            self.refill_all()

    def bad(self, block: ReceivedBlock) -> None:
        """A block was wrong: ban its sender and ask somebody else."""
        self._writing.discard(block.index)
        self.bytes_useless += block.length
        session = block.session
        session.tally.blocks_bad += 1
        if self.picker.knows(session.peer_id):
            self.picker.released(session.peer_id, block.index)
        session.blame(self._ban_score, f"block {block.index} does not match its hash")
        self.refill_all()

    def _rejected(self, session: PeerSession, event: Rejected) -> None:
        session.tally.blocks_rejected += len(event.digests)
        if event.reason in (RejectReason.NOT_HAVE, RejectReason.CHANGED, RejectReason.REFUSED):
            refused = event.reason is RejectReason.REFUSED
            for index in map(self._index, event.digests):
                if not refused:  # its user's will, which may change, and no lie
                    self._lost.note(session.peer_id, index)
                self.picker.block_lost(session.peer_id, index)
            session.lies += 0 if refused else len(event.digests)
            if session.lies > _LIES_MAX + _LIES_PER_BLOCK * session.tally.blocks_verified:
                session.leave(f"it did not have {session.lies} blocks that it said it had")
        elif event.reason is RejectReason.CANCELLED:
            self._given_back(session, event.digests)
            return
        elif session.client.choked:
            pass  # it will say when it serves us again
        else:
            pause = min(_PAUSE_S * 2**session.pauses, _PAUSE_MAX_S)
            session.pauses = min(session.pauses + 1, 16)
            session.paused_until = trio.current_time() + pause
        self._release(session, event.digests)
        self._news.fire()

    def _given_back(self, session: PeerSession, digests: tuple[bytes, ...]) -> None:
        """Ask those who are to send blocks instead of this peer."""
        now = trio.current_time()
        for digest in digests:
            index = self._index(digest)
            other = self._sessions.get(self._relievers.pop(index, session.peer_id))
            if not self.picker.released(session.peer_id, index) or other is None:
                continue
            if (
                other is not session
                and other.usable
                and self.picker.knows(other.peer_id)
                and other.client.room() > 0
                and self.picker.pick_this(other.peer_id, index)
            ):
                other.client.request([(digest, self._table.length(index))], now)
                other.wake()
        self.refill_all()

    def _release(self, session: PeerSession, digests: tuple[bytes, ...]) -> None:
        if not self.picker.knows(session.peer_id):
            return
        freed = [self.picker.released(session.peer_id, self._index(digest)) for digest in digests]
        if any(freed):
            self.refill_all()

    def _index(self, digest: bytes) -> int:
        index = self._table.index(digest)
        if index is None:
            raise KeyError(digest.hex())  # the machine reports only what was asked for
        return index
