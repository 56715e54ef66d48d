"""Asks peers for the signed document of a version.

Theory of operation: every peer is asked, as they join, and the first answer that is right counts (a
manifest's CID names exactly one), or the newest of all answers (a name). An answer is verified
before it counts; whoever sent a bad one is penalized and asked nothing more.

Error cases: nobody knows it -> NotFoundError; nobody can be asked, or answers ->
PeerUnreachableError; all were blamed -> PeerMisbehavedError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from sbp2p.errors import NotFoundError, PeerMisbehavedError, PeerUnreachableError
from sbp2p.swarm import VIOLATION_POINTS
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.manifest import read_signed_manifest

from .signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from sbp2p.config import ExchangeConfig
    from sbp2p_keys.signing import SignedDocument
    from sbp2p_protocol.exchange_client import ExchangeClient
    from sbp2p_protocol.exchange_events import VersionArrived, VersionMissing
    from sbp2p_protocol.manifest import Manifest

    from .session import PeerSession
    from .sources import Sources

GRACE_S: Final = 2.0
"""How long the first answer about a name waits for newer ones from peers that have not answered."""


def unreachable(sources: Sources) -> PeerUnreachableError | PeerMisbehavedError:
    """Return the error for a fetch that can ask nobody, with the reason for each peer."""
    if not sources.known:
        return PeerUnreachableError(
            "no peer to fetch from", hint="use a link with ?peer=, or connect to a seed first"
        )
    why = dict.fromkeys(sources.sessions, "it does not answer") | sources.failures
    reasons = "; ".join(f"{peer.short()}: {reason}" for peer, reason in why.items())
    if sources.exhausted:
        return PeerMisbehavedError(
            f"none of {sources.known} peers can be trusted: {reasons}",
            hint="nothing wrong was kept: ask for the link to another seed",
        )
    return PeerUnreachableError(
        f"none of {sources.known} peers can be asked: {reasons}",
        hint="check that a seed is running and can be reached",
    )


class Questions:
    """One question at a time, about a document, to all peers."""

    def __init__(self, sources: Sources, config: ExchangeConfig) -> None:
        self._sources = sources
        self._config = config
        self._ask: Callable[[ExchangeClient], int] | None = None
        self._accept: Callable[[Manifest], bool] = lambda _: True
        self._pending: set[tuple[PeerSession, int]] = set()
        self._found: list[tuple[SignedDocument, Manifest]] = []
        self._missing = 0
        self._changed = Signal()

    async def find(
        self,
        what: str,
        ask: Callable[[ExchangeClient], int],
        accept: Callable[[Manifest], bool],
        *,
        exact: bool,
        keep_waiting: Callable[[], bool],
    ) -> tuple[SignedDocument, Manifest]:
        """Ask everybody; returns the first answer (`exact`), or the one with the highest version.

        Args:
            what: words for the error.
            ask: puts the question to one peer.
            accept: whether a verified manifest answers the question.
            exact: whether there can be only one answer.
            keep_waiting: whether peers may still come when all have been asked.

        Raises:
            NotFoundError: the peers that answered do not have it.
            PeerUnreachableError: no peer could be asked, or none answered.
            PeerMisbehavedError: every peer broke the protocol.
        """
        self._ask, self._accept = ask, accept
        for session in self._sources.usable():
            self.joined(session)
        patience = max(self._config.patience_s, self._config.request_timeout_s)
        with trio.move_on_after(patience) as limit:
            while not self._is_over(exact=exact, keep_waiting=keep_waiting()):
                await self._changed.wait()
                if self._found:
                    limit.deadline = min(limit.deadline, trio.current_time() + GRACE_S)
        self._ask = None
        if self._found:
            return max(self._found, key=lambda found: found[1].version)
        if not self._missing:
            raise unreachable(self._sources)
        raise NotFoundError(
            f"none of {self._missing} peers that answered knows {what}",
            hint="check the link, or ask the publisher to seed it",
        )

    def _is_over(self, *, exact: bool, keep_waiting: bool) -> bool:
        # who is quick may lag behind: those who are still being reached get the grace, too
        if self._found and (exact or not (self._pending or self._sources.trying)):
            return True
        return not (self._pending or self._sources.trying or keep_waiting)

    def joined(self, session: PeerSession) -> None:
        """Ask a peer, too."""
        if self._ask is not None:
            self._pending.add((session, self._ask(session.client)))
            session.wake()

    def left(self, session: PeerSession) -> None:
        """Expect nothing more from a peer."""
        self._pending = {entry for entry in self._pending if entry[0] is not session}
        self._changed.fire()

    def tried(self) -> None:
        """A source could not be asked for now."""
        self._changed.fire()

    def take(self, session: PeerSession, event: VersionArrived | VersionMissing) -> None:
        """Take an answer."""
        self._pending.discard((session, event.request))
        document = getattr(event, "document", None)
        if document is None:
            self._missing += 1
        else:
            try:
                found = read_signed_manifest(document)
            except RemoteProtocolError as error:
                session.blame(VIOLATION_POINTS, str(error))
            else:
                if self._accept(found[1]):
                    self._found.append(found)
                else:
                    session.blame(VIOLATION_POINTS, "answered with another version")
        self._changed.fire()
