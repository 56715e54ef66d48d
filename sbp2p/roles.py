"""What a node does for others: send, receive, both or neither; for all of it, or for a part.

Theory of operation: rules are a value, and pure. A rule gives a role to a peer, to one model (by
its name under a publisher, or by the root of one version), to a namespace (every model of one
publisher), or to the whole node. Of the rules that apply to what is about to happen, the most
specific one decides alone:

    peer  >  model by root  >  model by name  >  namespace  >  node

    role      sends   receives   so it
    PEER      yes     yes        takes and gives
    SEED      yes     no         never asks anybody for anything
    LEECH     no      yes        never serves a block, and tells of none
    OFFLINE   no      no         as if it were not there: where that holds for all models, a peer
                                 gets no connection

Who asks must receive, who is asked must send: each node looks at its own rules alone, and tells the
other side (protocol/exchange.md, section 12). What a rule does not know, such as the name of a
version of which only the CID is known yet, it does not apply to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.cid import Cid
    from sbp2p_protocol.manifest import Manifest


class Role(Enum):
    """What is done; the value is how people write it."""

    PEER = "peer"
    SEED = "seed"
    LEECH = "leech"
    OFFLINE = "offline"

    @classmethod
    def of(cls, *, sends: bool, receives: bool) -> Role:
        """Return the role that does just that."""
        if sends:
            return cls.PEER if receives else cls.SEED
        return cls.LEECH if receives else cls.OFFLINE

    @property
    def sends(self) -> bool:
        """Whether blocks and documents go out."""
        return self in (Role.PEER, Role.SEED)

    @property
    def receives(self) -> bool:
        """Whether they are asked for."""
        return self in (Role.PEER, Role.LEECH)


@dataclass(frozen=True, slots=True)
class Subject:
    """What a block or a document belongs to, as far as is known."""

    root: Cid | None = None
    publisher: PeerId | None = None
    name: str | None = None

    @classmethod
    def of(cls, manifest: Manifest) -> Subject:
        """Return the subject of a version."""
        return cls(manifest.root, manifest.publisher, manifest.name)


ANYTHING: Final = Subject()
"""Of which nothing is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """Who has which role. Immutable; `Roles.change` puts other rules in their place."""

    node: Role = Role.PEER
    namespaces: Mapping[PeerId, Role] = field(default_factory=dict)
    """By publisher."""
    models: Mapping[tuple[PeerId, str], Role] = field(default_factory=dict)
    """By publisher and name."""
    roots: Mapping[Cid, Role] = field(default_factory=dict)
    """By the root of one version."""
    peers: Mapping[PeerId, Role] = field(default_factory=dict)
    members: Mapping[PeerId, Role] = field(default_factory=dict)
    """What peers may do by their certificates, in a private swarm; no rule allows more."""

    def role(self, peer: PeerId | None, subject: Subject = ANYTHING) -> Role:
        """Return the role towards a peer in all that concerns a subject."""
        found = self.peers.get(peer) if peer is not None else None
        if found is None and subject.root is not None:
            found = self.roots.get(subject.root)
        if found is None and subject.publisher is not None:
            if subject.name is not None:
                found = self.models.get((subject.publisher, subject.name))
            found = found or self.namespaces.get(subject.publisher)
        return self._with_member(peer, found or self.node)

    def whole(self, peer: PeerId) -> Role | None:
        """Return the role towards a peer that holds for every subject; None if it depends."""
        found = self.peers.get(peer)
        if found is None and not (self.roots or self.models or self.namespaces):
            found = self.node
        return None if found is None else self._with_member(peer, found)

    def sends_to(self, peer: PeerId) -> bool:
        """Whether anything at all might be sent to a peer."""
        return any(role.sends for role in self._possible(peer))

    def receives_from(self, peer: PeerId) -> bool:
        """Whether anything at all might be asked of a peer."""
        return any(role.receives for role in self._possible(peer))

    def receives(self, subject: Subject) -> bool:
        """Whether anybody at all may be asked for a subject."""
        roles = (self.role(None, subject), *self.peers.values())
        return any(role.receives for role in roles)

    def announces(self, subject: Subject) -> bool:
        """Whether this node may be named to everybody as one that has a subject."""
        return self.role(None, subject).sends

    def _possible(self, peer: PeerId) -> set[Role]:
        whole = self.whole(peer)
        if whole is not None:
            return {whole}
        maps = (self.roots, self.models, self.namespaces)
        roles = {self.node, *chain.from_iterable(each.values() for each in maps)}
        return {self._with_member(peer, role) for role in roles}

    def _with_member(self, peer: PeerId | None, role: Role) -> Role:
        """Return a role towards a peer without what its certificate does not let it do."""
        member = self.members.get(peer) if peer is not None else None
        if member is None:
            return role
        return Role.of(
            sends=role.sends and member.receives, receives=role.receives and member.sends
        )
