"""What the DHT needs of the world, and what the world needs of the DHT.

There are two worlds: `SwarmNetwork`, streams over real connections, and the virtual one of
`sbp2p.testing.kad_network`, thousands of nodes in one process without connections. The DHT above is
the same code in both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.kad_messages import KadMessage, KadPeer
    from sbp2p_protocol.kad_server import Requester
    from sbp2p_protocol.multiaddr import Address


class KadUser(Protocol):
    """What a network tells: a `Dht`. None of it blocks."""

    def server_found(self, server: KadPeer) -> None:
        """Take notice of a peer that says it serves this network's DHT."""

    def server_lost(self, peer_id: PeerId) -> None:
        """Take notice that a peer says it serves no more."""

    def answer(self, request: KadMessage, requester: Requester) -> KadMessage | None:
        """Return the reply to a peer's request; None if it has none.

        Raises:
            RemoteProtocolError: there is no reply, and the peer is at fault, unless it is a
                `RequestRefusedError`.
        """


class KadNetwork(Protocol):
    """Requests to peers, and the requests of peers."""

    @property
    def peer_id(self) -> PeerId:
        """Who this node is."""

    def addresses(self) -> tuple[Address, ...]:
        """Return where others may be told to find this node, no peer id; may be empty."""

    def looks_reachable(self) -> bool:
        """Return whether this node listens where others can come without help: a private network,
        this machine, or an address that peers have confirmed."""

    def can_reach(self, address: Address) -> bool:
        """Return whether there is a way to dial an address."""

    def find(self, peer_id: PeerId) -> KadPeer | None:
        """Return a connected peer and where others could find it; None if that is not known."""

    def seen_at(self, peer_id: PeerId) -> Address | None:
        """Return the address at the other end of a connection with a peer, if there is one."""

    async def dial(self, address: Address) -> PeerId:
        """Connect to whoever is at an address, or to the peer that it names; return who it is.

        Raises:
            PeerUnreachableError: nobody, or another peer, is there.
            ConfigError: the address cannot be dialled.
        """

    async def request(
        self, peer_id: PeerId, addresses: Sequence[Address], message: KadMessage
    ) -> KadMessage:
        """Ask a peer something, connecting to it if need be, and return its reply.

        If cancelled, the request may have been served.

        Raises:
            PeerUnreachableError: no connection, no answer in time, or it does not serve this.
            PeerMisbehavedError: what came back is no reply to this request.
        """

    async def send(
        self, peer_id: PeerId, addresses: Sequence[Address], messages: Sequence[KadMessage]
    ) -> None:
        """Tell a peer things that have no answer (ADD_PROVIDER), in order, over one stream.

        Returns when the peer has read them all, or took them without saying so.

        Raises:
            PeerUnreachableError: no connection, or it did not take them all.
        """

    def serve(self, *, on: bool) -> None:
        """Take requests of peers from now on and say so, or take none any more."""

    def attach(self, user: KadUser) -> None:
        """Work for `user` from now on; to be called once, before anything that waits."""

    async def run(self) -> None:
        """Tell the user what happens, until cancelled."""
