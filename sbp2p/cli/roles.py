"""`--role`: who is sent to and asked, as people write it.

ROLE               for everything
PEER/=ROLE         for every model of one publisher
PEER/NAME=ROLE     for one model
ROOT=ROLE          for one version, by the CID of its root
PEER=ROLE          towards one peer
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.roles import Role, Rules
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.cid import Cid

_HINT: Final = (
    "say peer, seed, leech or offline; or PEER/NAME=ROLE, PEER/=ROLE, ROOT=ROLE, PEER=ROLE"
)


def parse_rules(texts: Sequence[str]) -> Rules:
    """Return the rules that some `--role` options make; raises ConfigError."""
    from sbp2p.errors import ConfigError
    from sbp2p.roles import Role, Rules

    node: list[Role] = []
    namespaces: dict[PeerId, Role] = {}
    models: dict[tuple[PeerId, str], Role] = {}
    roots: dict[Cid, Role] = {}
    peers: dict[PeerId, Role] = {}
    for text in texts:
        what, equals, word = text.rpartition("=")
        try:
            role = Role(word)
        except ValueError:
            raise ConfigError(f"--role {text!r}: {word!r} is no role", hint=_HINT) from None
        publisher, slash, name = what.partition("/")
        if not equals:
            node.append(role)
        elif slash and name:
            models[_peer(text, publisher), name] = role
        elif slash:
            namespaces[_peer(text, publisher)] = role
        elif (root := _root(what)) is not None:
            roots[root] = role
        else:
            peers[_peer(text, what)] = role
    if len(set(node)) > 1:
        raise ConfigError("--role is given twice, with different roles for everything", hint=_HINT)
    return Rules(
        node=node[0] if node else Role.PEER,
        namespaces=namespaces,
        models=models,
        roots=roots,
        peers=peers,
    )


def _root(text: str) -> Cid | None:
    from sbp2p_protocol.cid import DAG_PB, BadCidError, Cid

    try:
        cid = Cid.parse(text)
    except BadCidError:
        return None
    return cid if cid.codec == DAG_PB else None


def _peer(text: str, peer: str) -> PeerId:
    from sbp2p.errors import ConfigError

    from .serving import parse_peer

    try:
        return parse_peer(peer)
    except ConfigError as error:
        raise ConfigError(f"--role {text!r}: {error}", hint=_HINT) from error
