from __future__ import annotations

import pytest

from sbp2p.cli.roles import parse_rules
from sbp2p.errors import ConfigError
from sbp2p.roles import Role, Rules
from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.cid import raw_cid
from tests.runtime.exchange_lab import small_version

PEER = PrivateKey.from_seed(b"r" * 32).peer_id
ROOT = small_version(3).manifest.root


def test_rules() -> None:
    assert parse_rules(()) == Rules()
    assert parse_rules(["leech", "leech"]) == Rules(node=Role.LEECH)
    assert parse_rules(
        ["seed", f"{PEER}/=leech", f"{PEER}/a=b=offline", f"{ROOT}=peer", f"{PEER}=seed"]
    ) == Rules(
        node=Role.SEED,
        namespaces={PEER: Role.LEECH},
        models={(PEER, "a=b"): Role.OFFLINE},
        roots={ROOT: Role.PEER},
        peers={PEER: Role.SEED},
    )
    assert parse_rules([f"{PEER.to_cid_text()}=leech"]).peers == {PEER: Role.LEECH}


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["king"], "'king' is no role"),
        ([""], "'' is no role"),
        (["PEER"], "is no role"),
        (["leech", "seed"], "given twice"),
        (["nobody=leech"], "'nobody' is not a peer id"),
        (["nobody/=leech"], "'nobody' is not a peer id"),
        ([f"{raw_cid(bytes(32))}=leech"], "is not a peer id"),
        ([f"{PEER}=king"], "'king' is no role"),
    ],
)
def test_what_are_no_rules(texts: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        parse_rules(texts)
    assert caught.value.hint
