"""Who is in a namespace: a link with each member, and what each has said of itself.

Theory of operation. Members come by every way that leads to peers, and are members while a link
with them is open:

| way | what it leads to |
|---|---|
| addresses | those that the user gave, tried again for as long as the namespace is open |
| connected peers | whoever speaks the protocol is asked |
| members' word | signed records of other members, as in the exchange's gossip |
| DHT | providers of a key made of the namespace's name |
| LAN | everybody who answers by multicast, if the node takes part in that |

Two nodes may ask each other at once. The stream of the one with the lower peer id stays then; a
peer whose links are older than TIE_S and who asks again has lost them without our notice: its new
stream takes the place of the old one.

Roles. A role, which may differ by peer, says whether this node tells of its updates and wants to be
told. Each side hears the other's; OFFLINE means no link. `peer_filter` decides who may be a member
at all.

A peer's update must be signed, be its own, and be of a later round than the one before, or the same
again; `sbp2p_protocol.rounds` judges. What is not is noted with its reason in `rejections`, which
the next round's result names, and counts against the peer. Updates are told to every member that
wants them, neighbour or not: who is whose neighbour is the receiver's affair.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from sbp2p import observe
from sbp2p.errors import PeerUnreachableError
from sbp2p.exchange.records import RecordReader
from sbp2p.negotiate import ProtocolUnsupportedError
from sbp2p.roles import Role
from sbp2p.swarm import VIOLATION_POINTS
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.namespace_messages import (
    NAMESPACE_VERSION,
    PROTOCOL_ID,
    Data,
    GoodbyeCode,
    Hello,
    Peers,
    Stance,
    Update,
    UpdateMessage,
    read_update,
)
from sbp2p_protocol.rounds import Rounds, Verdict

from .contacts import Contacts
from .links import Link
from .values import Member, NamespaceEvent, PeerJoined, PeerLeft, Rejection, RoleChanged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.cid import Cid
    from sbp2p_protocol.multiaddr import Address
    from sbp2p_protocol.namespace_peer import LinkEvent

    from .host import Host
    from .inbox import Inbox

TIE_S: Final = 5.0
"""A link that is younger may be one of two that were opened at once."""
REJECTIONS_MAX: Final = 256
EVENTS_MAX: Final = 1024
"""Events that wait for one reader; one that falls further behind is cut off."""
_UPDATES_KEPT: Final = 4
"""Of one peer: a round may still want an older one than the newest."""


@dataclass(slots=True)
class _Known:
    """One member."""

    link: Link
    stance: Stance
    records: RecordReader
    told: set[PeerId] = field(default_factory=set)
    """Members of which it was given a record."""

    @property
    def role(self) -> Role:
        return Role.of(sends=self.stance.sends, receives=self.stance.receives)


class Members:
    """The members of one namespace, as one node knows them."""

    def __init__(
        self,
        host: Host,
        name: str,
        inbox: Inbox,
        *,
        role: Role,
        rounds: Rounds,
        peer_filter: Callable[[PeerId], bool] | None,
    ) -> None:
        self.name = name
        self.role = role
        self.rounds = rounds
        """Which updates count."""
        self.round = 0
        """The last round that this node has finished."""
        self.joined = 0
        """How often a member has joined."""
        self.own: Update | None = None
        """This node's newest update."""
        self.rejections: deque[Rejection] = deque(maxlen=REJECTIONS_MAX)
        self.changed = trio.lowlevel.ParkingLot()
        """Parked tasks look again when a member or an update comes or goes."""
        self.new_member = trio.Event()
        self._host = host
        self._swarm = host.swarm
        self._config = host.config
        self._inbox = inbox
        self._filter = peer_filter
        self._roles: dict[PeerId, Role] = {}
        self._known: dict[PeerId, _Known] = {}
        self._updates: OrderedDict[PeerId, deque[Update]] = OrderedDict()
        """The last of each peer, also of some that have left: others may have them."""
        self._asking: dict[PeerId, Link] = {}
        self._closing = False
        self._listeners: list[trio.MemorySendChannel[NamespaceEvent]] = []
        self.contacts = Contacts(self._swarm, self._config, host.rng, self._ask)

    # -- who is there -----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Member]:
        for peer_id in sorted(self._known):
            known = self._known[peer_id]
            yield Member(peer_id, known.role, max(known.stance.round, self.published(peer_id)))

    def __contains__(self, peer_id: PeerId) -> bool:
        return peer_id in self._known

    def __len__(self) -> int:
        return len(self._known)

    def senders(self) -> list[PeerId]:
        """Return the members that publish, sorted."""
        return sorted(peer for peer, known in self._known.items() if known.stance.sends)

    def holders(self, peer_id: PeerId) -> list[PeerId]:
        """Return who may have a peer's update besides itself: those that have merged since."""
        update = self.newest(peer_id)
        reached = 0 if update is None else update.round
        return [
            each
            for each, known in sorted(self._known.items())
            if each != peer_id and known.stance.sends and known.stance.round >= reached
        ]

    def published(self, peer_id: PeerId) -> int:
        """Return the round of a peer's newest update; 0 if there is none."""
        update = self.newest(peer_id)
        return 0 if update is None else update.round

    def reached(self, peer_id: PeerId) -> int:
        """Return the round that a member is in: the one after what it has finished, at least."""
        known = self._known.get(peer_id)
        finished = 0 if known is None else known.stance.round
        return max(self.published(peer_id), finished + 1)

    def newest(self, peer_id: PeerId) -> Update | None:
        """Return a peer's newest update."""
        updates = self._updates.get(peer_id)
        return updates[-1] if updates else None

    def update(self, peer_id: PeerId, cid: Cid) -> Update | None:
        """Return one of a peer's last updates."""
        updates = self._updates.get(peer_id, ())
        return next((each for each in updates if each.cid == cid), None)

    def link(self, peer_id: PeerId) -> Link:
        """Return the link with a member; raises PeerUnreachableError."""
        known = self._known.get(peer_id)
        if known is None:
            raise PeerUnreachableError(
                f"peer {peer_id} is not in the namespace {self.name!r}",
                hint=self.contacts.failure(peer_id) or "wait for it with wait_for_peers",
            )
        return known.link

    def role_towards(self, peer_id: PeerId) -> Role:
        """Return what this node does for a peer."""
        return self._roles.get(peer_id, self.role)

    def listen(self) -> trio.MemoryReceiveChannel[NamespaceEvent]:
        """Return a channel of the events from now on."""
        send, receive = trio.open_memory_channel[NamespaceEvent](EVENTS_MAX)
        self._listeners.append(send)
        return receive

    # -- this node --------------------------------------------------------------------------------

    def change_role(self, role: Role, peer_id: PeerId | None = None) -> None:
        """Do something else from now on, for everybody or for one peer."""
        if peer_id is None:
            self.role = role
        else:
            self._roles[peer_id] = role
        for each, known in list(self._known.items()):
            if self.role_towards(each) is Role.OFFLINE:
                known.link.leave(GoodbyeCode.LEFT, "this node is offline")
                self._drop(each, known.link, "this node is offline to it")
            else:
                known.link.say(self._stance(each))
                self._tell(each, known)
        self.contacts.retry(peer_id)
        self.changed.unpark_all()

    def finished(self, round: int) -> None:  # noqa: A002
        """Note that this node has finished a round, and tell the members."""
        self.round = round
        for peer_id, known in self._known.items():
            known.link.say(self._stance(peer_id))

    def publish(self, update: Update) -> None:
        """Tell the members of this node's own update."""
        self.own = update
        for peer_id, known in self._known.items():
            self._tell(peer_id, known)

    def _tell(self, peer_id: PeerId, known: _Known) -> None:
        if self.own is not None and known.stance.receives and self.role_towards(peer_id).sends:
            known.link.say(UpdateMessage(self.own.document.to_bytes()))

    def _stance(self, peer_id: PeerId) -> Stance:
        role = self.role_towards(peer_id)
        return Stance(role.sends, role.receives, self.round)

    def _hello(self, peer_id: PeerId) -> Hello:
        update = b""
        if self.own is not None and self.role_towards(peer_id).sends:
            update = self.own.document.to_bytes()
        return Hello(
            NAMESPACE_VERSION,
            self.name,
            (),
            self._config.window_bytes,
            self._stance(peer_id),
            update,
        )

    def close(self, reason: str) -> list[Link]:
        """Leave every member; return the links, which end by themselves."""
        self._closing = True
        links = [known.link for known in self._known.values()]
        links += self._asking.values()
        for link in links:
            link.leave(GoodbyeCode.LEFT, reason)
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        self._known.clear()
        self.changed.unpark_all()
        return links

    # -- links ------------------------------------------------------------------------------------

    async def _ask(
        self, peer_id: PeerId, addresses: tuple[Address, ...], places: trio.Semaphore
    ) -> str:
        """Ask a peer whether it is in the namespace, and keep the link if it is."""
        if peer_id in self._known:
            await self._known[peer_id].link.ended.wait()
            return ""
        if refusal := self._refusal(peer_id):
            self.contacts.forget(peer_id)
            return refusal
        async with places:
            await self._swarm.connect(addresses, peer_id)
            try:
                stream = await self._swarm.open_stream(peer_id, [PROTOCOL_ID])
            except ProtocolUnsupportedError:
                self.contacts.forget(peer_id)
                raise
        if peer_id in self._known:  # it asked meanwhile
            stream.reset()
            return ""
        link = Link(stream, self._swarm, self._config)
        said = self._hello(peer_id)
        link.greet(said)
        link.adopt(partial(self._take, said))
        self._asking[peer_id] = link
        try:
            await link.run()
        finally:
            if self._asking.get(peer_id) is link:
                del self._asking[peer_id]
            was_member = self._drop(peer_id, link, link.reason)
        if link.goodbye in (GoodbyeCode.UNKNOWN, GoodbyeCode.REFUSED, GoodbyeCode.LEFT):
            self.contacts.forget(peer_id)
        return "" if was_member else link.reason

    def welcome(self, link: Link, hello: Hello) -> None:
        """Take or refuse a link that a peer opened."""
        peer_id = link.peer_id
        if refusal := self._refusal(peer_id):
            link.leave(GoodbyeCode.REFUSED, refusal)
            return
        known = self._known.get(peer_id)
        other = known.link if known is not None else self._asking.get(peer_id)
        if other is not None:
            young = trio.current_time() - other.opened_at < TIE_S
            if other.initiator and young and self._swarm.peer_id < peer_id:
                link.leave(GoodbyeCode.DUPLICATE, "there is another stream")
                return
            other.leave(GoodbyeCode.DUPLICATE, "there is another stream")
            self._asking.pop(peer_id, None)
        said = self._hello(peer_id)
        link.greet(said)
        link.adopt(partial(self._take, said), self._inbound_ended)
        self._greeted(link, hello)

    def _inbound_ended(self, link: Link) -> None:
        if self._drop(link.peer_id, link, link.reason) and link.goodbye is None:
            self.contacts.add(link.peer_id)

    def _refusal(self, peer_id: PeerId) -> str:
        """Return why a peer is not let in; empty if it is."""
        if self._closing:
            return "the namespace is being left"
        if self.role_towards(peer_id) is Role.OFFLINE:
            return "this node is offline to it"
        if peer_id not in self._known and len(self._known) >= self._config.members_max:
            return f"this node has {len(self._known)} members already"
        if self._inbox.bytes_of(peer_id) > self._config.window_bytes:
            return "messages of it wait to be read"
        try:
            welcome = self._filter is None or self._filter(peer_id)
        except Exception as error:  # foreign code: its bug must not end the tasks of the node
            observe.report_bug("a namespace's peer_filter", error)
            welcome = False
        return "" if welcome else "it is not let in"

    # -- what members say -------------------------------------------------------------------------

    def _take(self, said: Hello, link: Link, event: LinkEvent) -> None:
        if isinstance(event, Hello):
            if event.namespace != self.name:
                raise RemoteProtocolError("HELLO of another namespace than was asked for")
            self._asking.pop(link.peer_id, None)
            self._greeted(link, event)
            self._correct(link, said)
            return
        known = self._known.get(link.peer_id)
        if known is None or known.link is not link:
            return
        match event:
            case Data(payload):
                self._inbox.put(link, payload)
            case UpdateMessage(document):
                self._take_update(link.peer_id, document)
            case Stance():
                self._take_stance(link.peer_id, known, event)
            case Peers(records):
                self._meet(known, records)
            case _:
                pass

    def _greeted(self, link: Link, hello: Hello) -> None:
        peer_id = link.peer_id
        before = self._known.get(peer_id)
        reader = before.records if before is not None else RecordReader(self._swarm, peer_id)
        known = self._known[peer_id] = _Known(link, hello.stance, reader)
        if before is not None:
            before.link.leave(GoodbyeCode.DUPLICATE, "there is another stream")
        self._remember(peer_id)
        if hello.update:
            self._take_update(peer_id, hello.update, greeting=True)
        self.joined += 1
        if before is None:
            self._report(PeerJoined(peer_id, known.role))
        self.new_member.set()
        self.changed.unpark_all()

    def _correct(self, link: Link, said: Hello) -> None:
        """Say again what is no longer as HELLO said, which was on its way for a while."""
        now = self._hello(link.peer_id)
        if now.stance != said.stance:
            link.say(now.stance)
        if now.update and now.update != said.update:
            link.say(UpdateMessage(now.update))

    def _remember(self, peer_id: PeerId) -> None:
        """Keep where a member is, for when its connection is lost."""
        addresses = [
            each.remote_address for each in self._swarm.connections(peer_id) if each.initiator
        ]
        self.contacts.add(peer_id, addresses)

    def _drop(self, peer_id: PeerId, link: Link, reason: str) -> bool:
        """Forget a member whose link has ended; return whether it was one by this link."""
        known = self._known.get(peer_id)
        if known is None or known.link is not link:
            return False
        del self._known[peer_id]
        self._report(PeerLeft(peer_id, reason))
        self.changed.unpark_all()
        return True

    def _take_stance(self, peer_id: PeerId, known: _Known, stance: Stance) -> None:
        role, wanted = known.role, known.stance.receives
        known.stance = stance
        if known.role is not role:
            self._report(RoleChanged(peer_id, known.role))
        if stance.receives and not wanted:
            self._tell(peer_id, known)
        self.changed.unpark_all()

    def _take_update(self, peer_id: PeerId, document: bytes, *, greeting: bool = False) -> None:
        if not self.role_towards(peer_id).receives:
            return
        try:
            update = read_update(document, self.name, peer_id)
        except RemoteProtocolError as error:
            self.reject(peer_id, None, str(error))
            return
        verdict = self.rounds.update_arrived(
            peer_id, update.round, update.cid, update.samples, trio.current_time()
        )
        if verdict is Verdict.NEW:
            self._keep(peer_id, update)
        elif verdict is Verdict.EQUIVOCATION:
            self.reject(peer_id, update.cid, "two updates of one round")
        elif verdict is Verdict.OLD and not greeting:  # who starts again may not know better
            self.reject(peer_id, update.cid, "an update of an older round")
        self.changed.unpark_all()

    def _keep(self, peer_id: PeerId, update: Update) -> None:
        updates = self._updates.setdefault(peer_id, deque(maxlen=_UPDATES_KEPT))
        updates.append(update)
        self._updates.move_to_end(peer_id)
        while len(self._updates) > 2 * self._config.members_max:
            self._updates.popitem(last=False)

    def reject(self, peer_id: PeerId, cid: Cid | None, reason: str) -> None:
        """Note what a peer did that no honest one does; the next round's result tells."""
        self.rejections.append(Rejection(peer_id, cid, reason))
        self._swarm.penalize(peer_id, VIOLATION_POINTS, f"namespace {self.name}: {reason}")

    def _meet(self, known: _Known, records: tuple[bytes, ...]) -> None:
        for source in known.records.read(records):
            self.contacts.add(source.peer_id, source.addresses)

    def _report(self, event: NamespaceEvent) -> None:
        for listener in list(self._listeners):
            try:
                listener.send_nowait(event)
            except (trio.WouldBlock, trio.BrokenResourceError):
                # an event lost in silence would be worse than an end that can be seen
                listener.close()
                self._listeners.remove(listener)

    # -- for those who tell members of members ----------------------------------------------------

    def untold(self) -> Iterator[tuple[Link, set[PeerId], list[PeerId]]]:
        """Yield each link with whom its peer was told of, and those that it may be told of."""
        everybody = sorted(self._known)
        for peer_id, known in self._known.items():
            others = [each for each in everybody if each != peer_id and each not in known.told]
            if others:
                yield known.link, known.told, others
