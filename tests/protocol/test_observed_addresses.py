from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.address_scope import Scope, announced, observer_group, scope_of
from sbp2p_protocol.limits import OBSERVED_PER_GROUP_MAX, OBSERVER_GROUPS_MAX
from sbp2p_protocol.multiaddr import Address, parse_address
from sbp2p_protocol.observed_addresses import ObservedAddresses

PEERS = [PrivateKey.from_seed(bytes([number]) * 32).peer_id for number in range(8)]
LISTENING = parse_address("/ip4/10.0.0.5/tcp/4801")
OUTSIDE = parse_address("/ip4/1.2.3.4/tcp/4801")


def at(host: str, port: int = 4801) -> Address:
    return parse_address(f"/ip{6 if ':' in host else 4}/{host}/tcp/{port}")


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("/ip4/127.0.0.1/tcp/1", Scope.HERE),
        ("/ip4/0.0.0.0/tcp/1", Scope.HERE),
        ("/ip6/::1/tcp/1", Scope.HERE),
        ("/memory/5", Scope.HERE),
        ("/ip4/169.254.3.4/tcp/1", Scope.LINK),
        ("/ip6zone/eth0/ip6/fe80::1/tcp/1", Scope.LINK),
        ("/ip4/10.1.2.3/tcp/1", Scope.PRIVATE),
        ("/ip4/100.64.1.1/tcp/1", Scope.PRIVATE),
        ("/ip6/fd00::1/tcp/1", Scope.PRIVATE),
        ("/ip4/224.0.0.251/tcp/1", Scope.PRIVATE),
        ("/ip4/1.2.3.4/tcp/1", Scope.PUBLIC),
        ("/ip6/::ffff:1.2.3.4/tcp/1", Scope.PUBLIC),
        ("/ip6/2a00::1/tcp/1", Scope.PUBLIC),
        ("/dns4/example.org/tcp/1", Scope.NAMED),
    ],
)
def test_scopes(text: str, scope: Scope) -> None:
    assert scope_of(parse_address(text)) is scope


def test_observers_are_counted_by_what_costs_something() -> None:
    one, two = PEERS[:2]
    assert observer_group(at("1.2.3.4", 1), one) == observer_group(at("1.2.3.4", 2), two)
    assert observer_group(at("1.2.3.4"), one) != observer_group(at("1.2.3.5"), one)
    assert observer_group(at("2a00::1"), one) == observer_group(at("2a00:0:0:12::2"), two)
    assert observer_group(at("2a00::1"), one) != observer_group(at("2a00:0:0:100::1"), one)
    assert observer_group(at("127.0.0.1"), one) != observer_group(at("127.0.0.1"), two)


class Observers:
    """Peers at 8.8.0.0/16, each with a host and an id of its own."""

    def __init__(self, observers_min: int = 4) -> None:
        self.observed = ObservedAddresses(observers_min=observers_min, forget_s=60.0)

    def see(
        self,
        number: int,
        seen: Address,
        *,
        host: str | None = None,
        dialled_by_us: bool = False,
        connect: bool = True,
    ) -> None:
        peer, remote = PEERS[number % 8], at(host or f"8.8.{number // 250}.{number % 250 + 1}")
        if connect:
            self.observed.connected(peer, remote)
        self.observed.observe(
            peer,
            remote,
            seen,
            dialled_by_us=dialled_by_us,
            local=LISTENING,
            listening=[LISTENING, at("127.0.0.1"), at("10.0.0.9", 99)],
        )


def test_four_observers_confirm_and_three_do_not() -> None:
    observers = Observers()
    for number in range(3):
        observers.see(number, OUTSIDE)
    observers.see(2, OUTSIDE)  # again
    assert observers.observed.confirmed(0.0) == ()
    observers.see(3, OUTSIDE)
    assert observers.observed.confirmed(0.0) == (OUTSIDE,)


def test_peer_ids_of_one_host_are_one_observer() -> None:
    observers = Observers()
    for number in range(8):
        observers.see(number, OUTSIDE, host="8.8.8.8")
    assert observers.observed.confirmed(0.0) == ()


def test_observers_of_another_scope_do_not_count() -> None:
    observers = Observers()
    for number in range(8):
        observers.see(number, OUTSIDE, host=f"10.0.1.{number + 1}")
    assert observers.observed.confirmed(0.0) == ()
    for number in range(8):
        observers.see(number, at("10.0.0.77"), host=f"10.0.1.{number + 1}")
    assert observers.observed.confirmed(0.0) == (at("10.0.0.77"),)


def test_on_this_machine_peers_are_told_apart_by_their_ids() -> None:
    observers = Observers()
    for number in range(4):
        observers.see(number, at("127.0.0.9"), host="127.0.0.1")
    assert observers.observed.confirmed(0.0) == (at("127.0.0.9"),)


def test_the_port_of_a_dialled_connection_is_not_believed() -> None:
    observers = Observers()
    for number in range(4):
        observers.see(number, at("1.2.3.4", 50000 + number), dialled_by_us=True)
    assert observers.observed.confirmed(0.0) == (OUTSIDE,)
    observers = Observers()
    for number in range(4):
        observers.see(number, at("1.2.3.4", 7000))
    assert observers.observed.confirmed(0.0) == (at("1.2.3.4", 7000),)


def test_where_nothing_listens_nothing_is_confirmed() -> None:
    observed = ObservedAddresses(observers_min=1, forget_s=60.0)
    observed.connected(PEERS[0], at("8.8.8.8"))
    observed.observe(
        PEERS[0], at("8.8.8.8"), OUTSIDE, dialled_by_us=True, local=LISTENING, listening=[]
    )
    assert observed.confirmed(0.0) == ()


def test_listen_addresses_and_odd_ones_are_not_counted() -> None:
    observers = Observers(observers_min=1)
    observers.see(0, LISTENING, host="10.0.0.8")
    observers.see(1, parse_address("/ip4/1.2.3.4/udp/4801/quic-v1"))
    observers.see(2, parse_address("/dns4/example.org/tcp/1"))
    assert observers.observed.confirmed(0.0) == ()


def test_what_was_seen_is_forgotten_a_while_after_the_connection() -> None:
    observers = Observers()
    for number in range(4):
        observers.see(number, OUTSIDE)
    observers.observed.disconnected(PEERS[0], at("8.8.0.1"), 1000.0)
    assert observers.observed.confirmed(1059.0) == (OUTSIDE,)
    assert observers.observed.confirmed(1060.0) == ()


def test_one_observer_speaks_for_few_addresses_and_for_the_newest() -> None:
    observers = Observers(observers_min=1)
    for port in range(1, 100):
        observers.see(0, at("1.2.3.4", port), connect=port == 1)
    newest = range(100 - OBSERVED_PER_GROUP_MAX, 100)
    assert set(observers.observed.confirmed(0.0)) == {at("1.2.3.4", port) for port in newest}


def test_observers_are_bounded_and_the_gone_give_way() -> None:
    observers = Observers(observers_min=1)
    for number in range(OBSERVER_GROUPS_MAX):
        observers.see(number, at("1.2.3.4", 1))
    observers.see(OBSERVER_GROUPS_MAX, OUTSIDE)
    assert OUTSIDE not in observers.observed.confirmed(0.0)
    observers.observed.disconnected(PEERS[0], at("8.8.0.1"), 1.0)
    observers.see(OBSERVER_GROUPS_MAX, OUTSIDE)
    assert OUTSIDE in observers.observed.confirmed(2.0)


def test_what_is_announced() -> None:
    here, private, public = at("127.0.0.1"), at("10.0.0.5"), at("2a00::5")
    assert announced([here], [], unreachable=False) == (here,)
    assert announced([here, private], [], unreachable=False) == (private,)
    assert announced([here, private, public], [OUTSIDE], unreachable=False) == (
        OUTSIDE,
        public,
        private,
    )
    assert announced([here, private, public], [OUTSIDE], unreachable=True) == (private,)
    assert announced([here, public], [], unreachable=True) == ()
    assert announced([at("fe80::1")], [], unreachable=False) == ()


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.integers(1, 3),
            st.sampled_from(["1.2.3.4", "10.9.9.9", "127.0.0.3", "2a00::9"]),
            st.booleans(),
        ),
        max_size=40,
    )
)
def test_nothing_is_confirmed_that_too_few_hosts_reported(
    reports: list[tuple[int, int, str, bool]],
) -> None:
    observers = Observers()
    told: dict[str, set[int]] = {}
    for number, port, host, dialled in reports:
        observers.see(number, at(host, port), dialled_by_us=dialled)
        told.setdefault(host, set()).add(number)
    for address in observers.observed.confirmed(0.0):
        assert len(told[address.host]) >= 4
        assert scope_of(address) is Scope.PUBLIC
