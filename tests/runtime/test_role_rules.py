from __future__ import annotations

from itertools import product

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from sbp2p.roles import ANYTHING, Role, Rules, Subject
from sbp2p.swarm.roles import Roles
from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.cid import raw_cid

A, B, PUBLISHER, OTHER = (
    PrivateKey.from_seed(bytes([80 + number]) * 32).peer_id for number in range(4)
)
ROOT = raw_cid(bytes(32))
MODEL = Subject(ROOT, PUBLISHER, "model")
ROLES = st.sampled_from(Role)
MAYBE = st.none() | ROLES


@pytest.mark.parametrize(
    ("role", "sends", "receives"),
    [
        (Role.PEER, True, True),
        (Role.SEED, True, False),
        (Role.LEECH, False, True),
        (Role.OFFLINE, False, False),
    ],
)
def test_what_roles_do(role: Role, sends: bool, receives: bool) -> None:
    rules = Rules(node=role)
    assert (role.sends, role.receives) == (sends, receives)
    assert (rules.sends_to(A), rules.receives_from(A)) == (sends, receives)
    assert rules.whole(A) is role
    assert rules.receives(MODEL) is receives
    assert rules.announces(MODEL) is sends


@given(ROLES, MAYBE, MAYBE, MAYBE, MAYBE)
def test_the_most_specific_rule_decides(
    node: Role, namespace: Role | None, model: Role | None, root: Role | None, peer: Role | None
) -> None:
    rules = Rules(
        node=node,
        namespaces={PUBLISHER: namespace} if namespace else {},
        models={(PUBLISHER, "model"): model} if model else {},
        roots={ROOT: root} if root else {},
        peers={A: peer} if peer else {},
    )
    assert rules.role(A, MODEL) is (peer or root or model or namespace or node)
    assert rules.role(B, MODEL) is (root or model or namespace or node)
    assert rules.role(None, MODEL) is rules.role(B, MODEL)
    assert rules.role(B, Subject(publisher=PUBLISHER, name="other")) is (namespace or node)
    assert rules.role(B, Subject(publisher=OTHER, name="model")) is node
    assert rules.role(B, ANYTHING) is node
    assert rules.role(A, ANYTHING) is (peer or node)


@given(ROLES, MAYBE, MAYBE, MAYBE, MAYBE)
def test_summaries_agree_with_the_rules(
    node: Role, namespace: Role | None, model: Role | None, root: Role | None, peer: Role | None
) -> None:
    rules = Rules(
        node=node,
        namespaces={PUBLISHER: namespace} if namespace else {},
        models={(PUBLISHER, "model"): model} if model else {},
        roots={ROOT: root} if root else {},
        peers={A: peer} if peer else {},
    )
    subjects = [
        Subject(*each) for each in product((None, ROOT), (None, PUBLISHER, OTHER), (None, "model"))
    ]
    for who in (A, B):
        possible = {rules.role(who, subject) for subject in subjects}
        whole = rules.whole(who)
        assert whole is None or possible == {whole}
        # a rule that another one hides may still count: never the other way about
        assert rules.sends_to(who) or not any(role.sends for role in possible)
        assert rules.receives_from(who) or not any(role.receives for role in possible)
    for subject in subjects:
        anybody = any(rules.role(who, subject).receives for who in (A, B))
        assert rules.receives(subject) is anybody


@given(ROLES, MAYBE, ROLES)
def test_a_certificate_takes_away_and_never_gives(
    node: Role, peer: Role | None, member: Role
) -> None:
    """What a member may not receive is not sent to it; what it may not send it is not asked for."""
    rules = Rules(node=node, peers={A: peer} if peer else {}, members={A: member})
    own = peer or node
    found = rules.role(A, MODEL)
    assert found.sends == (own.sends and member.receives)
    assert found.receives == (own.receives and member.sends)
    assert rules.whole(A) is found
    assert rules.sends_to(A) == found.sends
    assert rules.receives_from(A) == found.receives
    assert rules.role(B, MODEL) is node


async def test_other_rules_keep_what_members_may_do() -> None:
    roles = Roles(Rules())
    roles.limit(A, Role.SEED)
    assert roles.rules.role(A) is Role.LEECH
    roles.change(Rules(node=Role.PEER, namespaces={PUBLISHER: Role.OFFLINE}))
    assert roles.rules.role(A) is Role.LEECH
    assert roles.rules.role(B) is Role.PEER
    roles.limit(A, Role.PEER)
    assert roles.rules.role(A) is Role.PEER


async def test_waiting_for_other_rules() -> None:
    first = Rules()
    roles = Roles(first)
    heard: list[Rules] = []
    async with trio.open_nursery() as nursery:

        async def listen() -> None:
            heard.append(await roles.wait_changed(first))

        nursery.start_soon(listen)
        await wait_all_tasks_blocked()
        assert not heard
        roles.change(Rules(node=Role.SEED))
    assert heard == [Rules(node=Role.SEED)]
    assert await roles.wait_changed(first) is roles.rules, "at once when it was missed"
