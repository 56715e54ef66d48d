"""Whose block goes out next, for all peers that ask this node.

Theory of operation. Two decisions, at two scales of time.

Slots, every ten seconds: whose requests are served at all (`sbp2p_protocol.choker`). There are as
many as can each be sent a block within `upload_turn_s` at the rate that was measured.

Turns, block by block: a session that has read a block asks for a turn, sends the block, and gives
the turn back. Turns go round, first come, first served. A block is of use only when it is whole,
so a few at a time are done sooner, one after another, than all of them together at the end. But the
peers' own links are busy, too, and too few turns leave this one idle. So the number of turns
follows the rate: one more when clearly less goes out than was possible lately and somebody waits,
one fewer after some time of a full link, never fewer than `parallel_uploads`; and some more when
the best rate that is remembered falls, to see whether it must. Who has waited for `_STARVED_S` gets
a turn in any case. While there is a limit for each peer, blocks wait for that and not for each
other: then every peer has a slot, and turns are not counted.

Nobody has a task here: sessions call, and are woken.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

import trio

from sbp2p_protocol.choker import Choker
from sbp2p_protocol.limits import BLOCK_MAX

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from sbp2p.config import ExchangeConfig
    from sbp2p_keys.identity import PeerId

CHECK_S: Final = 0.25
"""How often a session that waits for its turn has the others looked at."""
_STARVED_S: Final = 3.0
"""Less than a third of what a peer waits before it calls us stalled."""
_SLOTS_MIN: Final = 4
_SAMPLES: Final = 240
"""Samples among which the best is looked for: a minute of sending. Were it forgotten sooner, a rate
that fell because there were too few turns would soon be the best that anybody remembers."""
_SMOOTH: Final = 4
_FULL: Final = 0.93
"""Share of the best rate from which on the link counts as full."""
_PROBE_TURNS: Final = 2
_FULL_S: Final = 2.0
"""A full link for this long can do with one turn fewer."""


class Uploader(Protocol):
    """A session that sends blocks. Called in the event loop; may not wait."""

    @property
    def peer_id(self) -> PeerId:
        """To whom."""

    def wake(self) -> None:
        """Look again whether there is a turn."""

    @property
    def bytes_sent(self) -> int:
        """What its connection has sent so far, everything together."""

    def choke(self, *, choked: bool) -> None:
        """Serve the peer no longer, or again."""


class Uploads:
    """The slots and turns of one node."""

    def __init__(self, config: ExchangeConfig, rng: random.Random) -> None:
        now = trio.current_time()
        self._config = config
        self._choker: Choker[PeerId] = Choker(
            rng,
            policy=config.choking,
            slots=config.upload_slots_max,
            round_s=config.choke_round_s,
            optimistic_s=config.optimistic_unchoke_s,
            snub_s=config.snub_s,
            now=now,
        )
        self._sessions: dict[PeerId, dict[Uploader, bool]] = {}
        """Of each peer, and whether it wants anything over that one."""
        self.peers_limited: Callable[[], bool] = lambda: False
        """Whether there is a limit for each peer."""
        self._fetches = 0
        self._waiting: deque[tuple[Uploader, float]] = deque()
        self._turns: set[Uploader] = set()
        self._most_turns = config.parallel_uploads
        self._full_since = now
        self._meter = _Meter(now)
        self._counted: dict[Uploader, int] = {}
        """What each connection had sent at the last sample."""

    # -- sessions -------------------------------------------------------------------------------

    def joined(self, session: Uploader) -> None:
        """A peer can ask."""
        now = trio.current_time()
        if session.peer_id not in self._sessions:
            self._sessions[session.peer_id] = {}
            self._choker.joined(session.peer_id, now)
        self._sessions[session.peer_id][session] = False
        self._counted[session] = session.bytes_sent

    def left(self, session: Uploader) -> None:
        """A session is over; its turn goes to another."""
        mine = self._sessions[session.peer_id]
        del mine[session]
        del self._counted[session]
        now = trio.current_time()
        if not mine:
            del self._sessions[session.peer_id]
            self._choker.left(session.peer_id, now)
        else:
            self._choker.wants(session.peer_id, any(mine.values()), now)
        self.give_back(session)
        self._waiting = deque(each for each in self._waiting if each[0] is not session)
        self._apply()

    def wants(self, session: Uploader, *, wanting: bool) -> None:
        """Note whether a peer wants anything that is here."""
        mine = self._sessions[session.peer_id]
        if mine[session] is not wanting:
            mine[session] = wanting
            self._choker.wants(session.peer_id, any(mine.values()), trio.current_time())
            self._apply()

    # -- what others give -----------------------------------------------------------------------

    def fetching(self, change: int) -> None:
        """A fetch has begun (1) or ended (-1): while there is one, what peers give counts."""
        self._fetches += change
        self._choker.fetching = self._fetches > 0

    def received(self, peer_id: PeerId, count: int) -> None:
        """Note bytes of blocks that a peer has sent us."""
        self._choker.received(peer_id, count, trio.current_time())

    def owes(self, peer_id: PeerId, *, owing: bool) -> None:
        """Note whether a peer owes us blocks."""
        self._choker.owes(peer_id, owing, trio.current_time())

    # -- turns ----------------------------------------------------------------------------------

    @property
    def contended(self) -> bool:
        """Whether somebody waits for a turn."""
        return bool(self._waiting)

    def turn(self, session: Uploader) -> bool:
        """Whether a session may send a block now; if not it is woken when it may."""
        if session in self._turns:
            return True
        free = not self._waiting and len(self._turns) < self._most_turns
        if free or self.peers_limited():
            self._turns.add(session)
            return True
        if all(each is not session for each, _ in self._waiting):
            self._waiting.append((session, trio.current_time()))
        self._grant()
        return session in self._turns

    def give_back(self, session: Uploader) -> None:
        """A session does not need its turn any more."""
        if session in self._turns:
            self._turns.discard(session)
            self._grant()

    def _grant(self) -> None:
        now = trio.current_time()
        if self._meter.is_due(now):
            self._sample(now)
        while self._waiting:
            session, since = self._waiting[0]
            if len(self._turns) >= self._most_turns and now - since < _STARVED_S:
                return
            self._waiting.popleft()
            self._turns.add(session)
            session.wake()

    def _sample(self, now: float) -> None:
        """Look how much went out, and whether more or fewer turns would do."""
        counted = self._counted
        for session, before in counted.items():
            counted[session] = session.bytes_sent
            self._meter.add(counted[session] - before)
        best = self._meter.best
        self._meter.sample(now)
        if self._waiting and self._meter.best < 0.99 * best:
            self._most_turns += _PROBE_TURNS
        if self._meter.last < _FULL * self._meter.best:
            self._full_since = now
            if self._waiting and len(self._turns) >= self._most_turns:
                self._most_turns += 1
        elif now - self._full_since >= _FULL_S:
            self._full_since = now
            self._most_turns = max(self._config.parallel_uploads, self._most_turns - 1)

    # -- time -----------------------------------------------------------------------------------

    def check_time(self) -> None:
        """Look at the time: a new round, or a turn for somebody who has waited for long."""
        now = trio.current_time()
        self._grant()
        if now >= self._choker.next_deadline():
            self._choker.slots = self._slots()
            self._choker.handle_timer(now)
            self._apply()

    def _slots(self) -> int:
        blocks = self._meter.best * self._config.upload_turn_s / BLOCK_MAX
        most = self._config.upload_slots_max
        if not self._meter.best or self.peers_limited():
            return most
        return min(most, max(_SLOTS_MIN, int(blocks)))

    def _apply(self) -> None:
        for peer, choked in self._choker.changes():
            for session in tuple(self._sessions.get(peer, ())):
                session.choke(choked=choked)


class _Meter:
    """How much goes out a second, and how much has been possible lately."""

    def __init__(self, now: float) -> None:
        self.best = 0.0
        """Bytes a second of the best recent sample."""
        self.last = 0.0
        """Of the newest; each is the mean of `_SMOOTH` spans, since blocks go out in bursts."""
        self._spans: deque[float] = deque(maxlen=_SMOOTH)
        self._samples: deque[float] = deque(maxlen=_SAMPLES)
        self._since = now
        self._count = 0

    def add(self, count: int) -> None:
        """Note bytes that went out."""
        self._count += count

    def is_due(self, now: float) -> bool:
        """Whether a sample is long enough to be taken."""
        return now - self._since >= CHECK_S

    def sample(self, now: float) -> None:
        """Take a sample."""
        self._spans.append(self._count / (now - self._since))
        self.last = sum(self._spans) / len(self._spans)
        if len(self._spans) == _SMOOTH:
            self._samples.append(self.last)
            self.best = max(self._samples)
        self._since, self._count = now, 0
