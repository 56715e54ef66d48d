"""Gets the blocks that describe a version: tree nodes and tensor index pages, by CID.

Theory of operation: from the store, or from any peer, each CID of one peer at a time. A peer that
rejects it, stalls or leaves is replaced by the next; one that has refused is not asked again.
Blocks are hashed by whoever takes them, and a wrong one bans its sender.

Error cases: nobody has it -> NotFoundError; nobody can be asked -> PeerUnreachableError; right
bytes that make no sense -> PeerMisbehavedError that blames the version, since no peer can help.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from sbp2p.errors import NotFoundError, PeerMisbehavedError
from sbp2p_protocol.errors import IntegrityError, RemoteProtocolError
from sbp2p_protocol.exchange_client import NODE_ESTIMATE

from .questions import unreachable
from .signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sbp2p.calls import Calls
    from sbp2p.config import ExchangeConfig
    from sbp2p.store import Store
    from sbp2p_protocol.cid import Cid
    from sbp2p_protocol.exchange_events import NodeArrived, NodeRejected

    from .session import PeerSession
    from .sources import Sources

_STORE_BATCH: Final = 64
"""Loose blocks looked up, or kept, in one thread call."""


@dataclass(slots=True)
class _WantedNode:
    """A loose block on order."""

    cid: Cid
    owner: PeerSession | None = None
    refused_by: set[PeerSession] = field(default_factory=set)


class NodeFetcher:
    """Gets loose blocks by CID from the store or from peers."""

    def __init__(
        self,
        sources: Sources,
        store: Store,
        config: ExchangeConfig,
        threads: Calls,
        ban_score: int,
    ) -> None:
        self.bytes_received = 0
        self._sources = sources
        self._store = store
        self._config = config
        self._threads = threads
        self._ban_score = ban_score
        self._wanted: dict[Cid, _WantedNode] = {}
        self._unassigned: deque[Cid] = deque()
        self._take: Callable[[Cid, bytes], None] = lambda _cid, _data: None
        self._unsaved: list[tuple[Cid, bytes]] = []
        self._fault: RemoteProtocolError | None = None
        self._changed = Signal()

    async def fetch(self, cids: Iterable[Cid], take: Callable[[Cid, bytes], None]) -> None:
        """Call `take` with each block, in any order, and keep the blocks in the store.

        Args:
            cids: of the blocks, each once.
            take: raises IntegrityError if the bytes are not the block.

        Raises:
            NotFoundError, PeerUnreachableError: a block cannot be had, after `patience_s`.
            PeerMisbehavedError: `take` raised another RemoteProtocolError: right bytes that make
                no sense, which is the publisher's fault.
            StoreError: the store failed.
        """
        missing = await self._from_store(list(cids), take)
        self._take, self._fault = take, None
        self._wanted = {cid: _WantedNode(cid) for cid in missing}
        self._unassigned = deque(missing)
        try:
            self.assign()
            while self._wanted and self._fault is None:
                await self._wait()
                if len(self._unsaved) >= _STORE_BATCH:
                    await self._save()
            await self._save()
        finally:
            self._wanted.clear()
        if self._fault is not None:
            raise _malformed(self._fault)

    async def _from_store(
        self, cids: Sequence[Cid], take: Callable[[Cid, bytes], None]
    ) -> list[Cid]:
        missing: list[Cid] = []
        for start in range(0, len(cids), _STORE_BATCH):
            batch = cids[start : start + _STORE_BATCH]
            found = await self._threads.run(
                lambda batch: [self._store.get_loose(cid) for cid in batch], batch
            )
            for cid, data in zip(batch, found, strict=True):
                if data is None:
                    missing.append(cid)
                    continue
                try:
                    take(cid, data)
                except IntegrityError:
                    missing.append(cid)  # damaged here; a peer may have it right
                except RemoteProtocolError as error:
                    raise _malformed(error) from error
        return missing

    async def _wait(self) -> None:
        with trio.move_on_after(self._config.patience_s) as limit:
            await self._changed.wait()
        if limit.cancelled_caught:
            if not self._sources.sessions:
                raise unreachable(self._sources)
            raise NotFoundError(
                f"{len(self._wanted)} blocks that describe the version are with none of"
                f" {len(self._sources.sessions)} connected peers",
                hint="ask the publisher to seed it again, or add another peer",
            )

    async def _save(self) -> None:
        unsaved, self._unsaved = self._unsaved, []
        if unsaved:
            await self._threads.run(self._store.put_loose_many, unsaved)

    def assign(self) -> None:
        """Order what nobody owes, each of the peer that owes least and has not refused it."""
        if not self._unassigned:
            return
        room = {each: each.client.room_nodes() for each in self._sources.usable()}
        room = {each: space for each, space in room.items() if space > 0}
        orders: dict[PeerSession, list[Cid]] = {}
        for _ in range(len(self._unassigned)):
            if not room:
                break
            cid = self._unassigned.popleft()
            wanted = self._wanted.get(cid)
            if wanted is None:
                continue
            able = [each for each in room if each not in wanted.refused_by]
            if not able:
                self._unassigned.append(cid)
                continue
            owner = wanted.owner = max(able, key=room.__getitem__)
            orders.setdefault(owner, []).append(cid)
            room[owner] -= NODE_ESTIMATE
            if room[owner] <= 0 or len(orders[owner]) >= owner.client.room_requests():
                del room[owner]
        for session, cids in orders.items():
            session.client.get_nodes(cids, trio.current_time())
            session.wake()

    def joined(self, _: PeerSession) -> None:
        """A peer can be asked."""
        self.assign()

    def left(self, session: PeerSession) -> None:
        """Give what a peer owed to others."""
        self._release(session, list(self._wanted))

    def stalled(self, session: PeerSession, cids: Iterable[Cid]) -> None:
        """Give what a peer owes to others, who may have it sooner."""
        self._release(session, cids)

    def _release(self, session: PeerSession, cids: Iterable[Cid]) -> None:
        for cid in cids:
            wanted = self._wanted.get(cid)
            if wanted is not None and wanted.owner is session:
                self._give_back(wanted)
        self.assign()

    def _give_back(self, wanted: _WantedNode) -> None:
        wanted.owner = None
        self._unassigned.append(wanted.cid)

    def take(self, session: PeerSession, event: NodeArrived | NodeRejected) -> None:
        """Take a block or a refusal."""
        wanted = self._wanted.get(event.cid)
        data = getattr(event, "data", None)
        if data is None:
            if wanted is not None:
                wanted.refused_by.add(session)
                if wanted.owner is session:
                    self._give_back(wanted)
            self.assign()
            return
        if wanted is None:
            return
        try:
            self._take(event.cid, data)
        except IntegrityError as error:
            self._give_back(wanted)
            session.blame(self._ban_score, str(error))
        except RemoteProtocolError as error:
            self._fault = error
        else:
            del self._wanted[event.cid]
            self._unsaved.append((event.cid, data))
            self.bytes_received += len(data)
        self.assign()
        self._changed.fire()


@contextmanager
def malformed() -> Iterator[None]:
    """Turn a RemoteProtocolError from verified bytes into the publisher's fault."""
    try:
        yield
    except RemoteProtocolError as error:
        raise _malformed(error) from error


def _malformed(error: RemoteProtocolError) -> PeerMisbehavedError:
    return PeerMisbehavedError(
        f"the version itself is malformed: {error}",
        hint="no peer can help: tell the publisher",
    )
