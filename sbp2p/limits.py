"""How fast this node sends and receives: limits for all peers together and for each of them.

Theory of operation: whoever is about to send bytes that count, or has just received some, waits in
`upload` or `download` first, a piece at a time (`upload_piece`, `download_piece`). One of those who
wait sleeps until the next ticket can be granted and grants it; when it is done another takes its
place. So there is no task that could outlive anybody, and one timer however many wait.

A receiver that waits does not read; its stream's window fills, and the peer stops. Besides what a
download limit lets through, up to one window (256 KiB) may so lie received and unread, once for
each stream.

Cancelled while waiting: nothing was taken. Waiting has no deadline, since a limit is this node's
own will; how long depends on the limit alone, because it is shared fairly
(`sbp2p_protocol/rate.py`).

Errors: ValueError for a count of bytes that is not positive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from sbp2p_protocol.rate import RateQueue

if TYPE_CHECKING:
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.rate import Ticket

    from .config import LimitsConfig


class Limits:
    """Both directions of one node, for all of its streams."""

    def __init__(self, config: LimitsConfig) -> None:
        now = trio.current_time()
        self._config = config
        self._upload = _Direction(RateQueue(config.upload_bytes_s, config.peer_upload_bytes_s, now))
        self._download = _Direction(
            RateQueue(config.download_bytes_s, config.peer_download_bytes_s, now)
        )

    @property
    def config(self) -> LimitsConfig:
        """The limits that hold now."""
        return self._config

    def change(self, config: LimitsConfig) -> None:
        """Go by other limits from now on, also for those who wait already."""
        self._config = config
        self._upload.change(config.upload_bytes_s, config.peer_upload_bytes_s)
        self._download.change(config.download_bytes_s, config.peer_download_bytes_s)

    @property
    def upload_piece(self) -> int | None:
        """Most bytes to send at a time; None while there is no limit, and no need to wait."""
        return self._upload.queue.piece

    @property
    def download_piece(self) -> int | None:
        """Most bytes to read at a time; None while there is no limit, and no need to wait."""
        return self._download.queue.piece

    async def upload(self, peer_id: PeerId, count: int) -> None:
        """Wait until `count` bytes may be sent to a peer."""
        await self._upload.take(peer_id, count)

    async def download(self, peer_id: PeerId, count: int) -> None:
        """Wait until `count` bytes may have been received from a peer."""
        await self._download.take(peer_id, count)


class _Direction:
    """Tickets of one direction, and the one waiter that looks at the time for all."""

    def __init__(self, queue: RateQueue[PeerId]) -> None:
        self.queue = queue
        self._events: dict[Ticket[PeerId], trio.Event] = {}
        """Those who wait, in the order in which they came."""
        self._timer: trio.CancelScope | None = None
        """Ends when the one who looks at the time should; None when nobody does."""

    def change(self, total: float | None, each: float | None) -> None:
        self.queue.set_rates(total, each, trio.current_time())
        self._grant()

    async def take(self, peer_id: PeerId, count: int) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self.queue.limited:
            return
        ticket = self.queue.ask(peer_id, count, trio.current_time())
        self._grant()
        if ticket.granted:
            return
        try:
            await self._wait(ticket)
        except BaseException:
            self.queue.withdraw(ticket, trio.current_time())
            self._grant()
            raise

    async def _wait(self, ticket: Ticket[PeerId]) -> None:
        try:
            while not ticket.granted:
                event = self._events[ticket] = trio.Event()
                if self._timer is None:
                    await self._keep_time(event)
                else:
                    await event.wait()
        finally:
            del self._events[ticket]
            if self._timer is None and self._events:
                next(iter(self._events.values())).set()  # who takes over

    async def _keep_time(self, event: trio.Event) -> None:
        deadline = self.queue.next_time(trio.current_time())
        with trio.CancelScope(deadline=deadline) as self._timer:
            try:
                await event.wait()
            finally:
                self._timer = None
        self._grant()

    def _grant(self) -> None:
        now = trio.current_time()
        for ticket in self.queue.grant(now):
            if ticket in self._events:
                self._events[ticket].set()
        if self._timer is not None:
            self._timer.deadline = self.queue.next_time(now)
