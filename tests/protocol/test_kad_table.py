"""The routing table: buckets, seniority, address groups, nearness, refreshing."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sbp2p_keys.identity import PeerId
from sbp2p_keys.multi import SHA2_256, multihash_encode
from sbp2p_protocol.kad_keys import common_prefix_length, kad_id, kad_id_of
from sbp2p_protocol.kad_messages import KadPeer
from sbp2p_protocol.kad_table import (
    BUCKET_SIZE,
    FAILURES_MAX,
    GROUP_IN_BUCKET_MAX,
    GROUP_IN_TABLE_MAX,
    RoutingTable,
    Verdict,
    groups_of,
)
from sbp2p_protocol.multiaddr import Address, parse_address

HERE = (parse_address("/memory/1"),)


def peer(number: int) -> PeerId:
    return PeerId(multihash_encode(SHA2_256, number.to_bytes(32)))


OWN = peer(0)
IN_BUCKET: dict[int, list[PeerId]] = {}
for _number in range(1, 1500):
    _place = common_prefix_length(kad_id_of(OWN), kad_id_of(peer(_number)))
    IN_BUCKET.setdefault(_place, []).append(peer(_number))


def public(text: str) -> tuple[Address, ...]:
    return (parse_address(f"/ip4/{text}/tcp/1"),)


def test_a_bucket_holds_twenty_and_who_came_first_stays() -> None:
    table = RoutingTable(OWN)
    first = IN_BUCKET[0][:BUCKET_SIZE]
    assert {table.add(each, HERE, 0.0) for each in first} == {Verdict.WANTED}
    assert table.add(IN_BUCKET[0][BUCKET_SIZE], HERE, 99.0) is Verdict.FULL
    assert [contact.peer_id for contact in table] == first
    assert table.add(IN_BUCKET[1][0], HERE, 0.0) is Verdict.WANTED
    assert table.bucket_sizes() == (BUCKET_SIZE, 1)


def test_only_a_contact_that_failed_gives_its_place() -> None:
    table = RoutingTable(OWN)
    for number, each in enumerate(IN_BUCKET[0][:BUCKET_SIZE]):
        table.add(each, HERE, float(number))
    old, older, new = IN_BUCKET[0][7], IN_BUCKET[0][3], IN_BUCKET[0][BUCKET_SIZE]
    table.failed(old)
    table.failed(older)
    assert table.add(new, HERE, 50.0) is Verdict.WANTED
    assert older not in table
    assert old in table
    table.seen(old, 51.0)
    assert table.judge(older, HERE) is Verdict.FULL


def test_a_contact_that_fails_twice_in_a_row_is_gone() -> None:
    table = RoutingTable(OWN)
    table.add(peer(1), HERE, 0.0)
    for _ in range(3):
        assert not table.failed(peer(1))
        table.seen(peer(1), 1.0)
    assert [table.failed(peer(1)) for _ in range(FAILURES_MAX)] == [False, True]
    assert peer(1) not in table
    assert not table.failed(peer(1))
    assert (len(table), table.depth) == (0, 0)


def test_who_asks_is_not_one_that_answers() -> None:
    table = RoutingTable(OWN)
    table.add(peer(1), HERE, 0.0)
    table.heard(peer(1), 5.0)
    assert not table.silent(9.0, 5.0)
    table.failed(peer(1))
    table.heard(peer(1), 10.0)
    table.heard(peer(2), 10.0)
    contact = table.get(peer(1))
    assert contact is not None
    assert (contact.failures, contact.last_seen) == (1, 5.0)
    table.moved(peer(1), (parse_address("/memory/9"),))
    assert contact.is_doubtful
    assert table.failed(peer(1))


def test_this_node_and_who_is_known_are_no_candidates() -> None:
    table = RoutingTable(OWN)
    assert table.add(OWN, HERE, 0.0) is Verdict.OWN
    table.add(peer(1), HERE, 0.0)
    assert table.add(peer(1), (parse_address("/memory/2"),), 5.0) is Verdict.KNOWN
    contact = table.get(peer(1))
    assert contact is not None
    assert (contact.last_seen, str(contact.addresses[0])) == (5.0, "/memory/2")


def test_few_of_one_network_come_in() -> None:
    table = RoutingTable(OWN)
    verdicts = [
        table.add(each, public(f"1.2.{i}.1"), 0.0) for i, each in enumerate(IN_BUCKET[0][:9])
    ]
    assert verdicts.count(Verdict.WANTED) == GROUP_IN_BUCKET_MAX
    assert set(verdicts[GROUP_IN_BUCKET_MAX:]) == {Verdict.CROWDED}
    added = [
        table.add(IN_BUCKET[bucket][0], public(f"1.2.9.{bucket}"), 0.0) for bucket in range(1, 6)
    ]
    assert added.count(Verdict.WANTED) == GROUP_IN_TABLE_MAX - GROUP_IN_BUCKET_MAX
    table.remove(IN_BUCKET[0][0])
    assert table.add(IN_BUCKET[6][0], public("1.2.200.200"), 0.0) is Verdict.WANTED


def test_a_contact_cannot_move_into_a_network_of_which_there_is_enough() -> None:
    table = RoutingTable(OWN)
    for bucket in range(GROUP_IN_TABLE_MAX):
        table.add(IN_BUCKET[bucket][0], public(f"1.2.3.{bucket}"), 0.0)
    mover = IN_BUCKET[5][0]
    table.add(mover, public("9.9.9.9"), 0.0)
    table.seen(mover, 1.0, public("1.2.9.9"))
    contact = table.get(mover)
    assert contact is not None
    assert contact.addresses == public("9.9.9.9")
    table.seen(mover, 1.0, public("9.9.1.1"))
    assert contact.addresses == public("9.9.1.1")


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("/ip4/1.2.3.4/tcp/1", "1.2.0.0/16"),
        ("/ip6/2606:4700:4700::1111/tcp/1", "2606:4700::/32"),
        ("/ip6/::ffff:1.2.3.4/tcp/1", "1.2.0.0/16"),
        ("/dns4/a.b.Example.org/tcp/1", "example.org"),
        ("/ip4/127.0.0.1/tcp/1", None),
        ("/ip4/192.168.1.2/tcp/1", None),
        ("/ip6/fe80::1/tcp/1", None),
        ("/memory/7", None),
    ],
)
def test_groups(text: str, group: str | None) -> None:
    assert groups_of([parse_address(text)]) == ({group} if group else set())


@given(
    numbers=st.sets(st.integers(1, 400), max_size=120),
    doubtful=st.sets(st.integers(1, 400), max_size=20),
    target=st.integers(0, 10**6),
    count=st.integers(0, 30),
)
def test_the_closest_are_those_of_a_whole_sort(
    numbers: set[int], doubtful: set[int], target: int, count: int
) -> None:
    table = RoutingTable(OWN, bucket_size=1000)
    for number in numbers:
        table.add(peer(number), HERE, 0.0)
    for number in doubtful:
        table.failed(peer(number))
    place = kad_id(target.to_bytes(8))

    def ordered(chosen: set[int]) -> list[PeerId]:
        return sorted(map(peer, chosen), key=lambda each: kad_id_of(each) ^ place)

    able = ordered(numbers - doubtful)
    assert [each.peer_id for each in table.closest(place, count)] == able[:count]
    everybody = [*able, *ordered(numbers & doubtful)]
    found = table.closest(place, count, doubtful=True, leave_out={peer(1)})
    assert [each.peer_id for each in found] == [each for each in everybody if each != peer(1)][
        :count
    ]


def test_buckets_that_no_lookup_passed_are_refreshed() -> None:
    table = RoutingTable(OWN)
    for bucket in range(4):
        table.add(IN_BUCKET[bucket][0], HERE, 0.0)
    rng = Random(3)  # noqa: S311
    targets = table.refresh_targets(100.0, 600.0, rng)
    assert [table.bucket_number(kad_id(target)) for target in targets] == [0, 1, 2, 3]
    for target in targets[:3]:
        table.looked_up(kad_id(target), 100.0)
    assert len(table.refresh_targets(699.0, 600.0, rng)) == 1
    assert len(table.refresh_targets(700.0, 600.0, rng)) == 4


def test_buckets_of_which_everybody_is_known_need_no_refreshing() -> None:
    table = RoutingTable(OWN)
    everybody = [KadPeer(each, HERE) for each in map(peer, range(1, 1500))]
    everybody.sort(key=lambda each: kad_id_of(each.peer_id) ^ table.own_place)
    for each in everybody:
        table.add(each.peer_id, each.addresses, 0.0)
    below = table.known_from(everybody[:BUCKET_SIZE])
    farthest = everybody[BUCKET_SIZE - 1].peer_id
    assert below == common_prefix_length(kad_id_of(farthest), table.own_place) + 1
    for bucket in range(below, table.depth):
        assert set(IN_BUCKET.get(bucket, [])) <= {each.peer_id for each in everybody[:BUCKET_SIZE]}
    targets = table.refresh_targets(0.0, 1.0, Random(1), below=below)  # noqa: S311
    assert len(targets) == below < table.depth
    # too few answers mean a small network, or a lookup that failed
    assert table.known_from(everybody[:3]) > table.depth
    small = RoutingTable(OWN)
    small.add(peer(1), HERE, 0.0)
    assert small.known_from(everybody[:3]) == 0
    assert not small.refresh_targets(0.0, 1.0, Random(1), below=0)  # noqa: S311


def test_who_is_silent() -> None:
    table = RoutingTable(OWN)
    for number in (1, 2, 3):
        table.add(peer(number), HERE, float(number))
    assert [each.peer_id for each in table.silent(12.0, 10.0)] == [peer(1), peer(2)]


class Table(RuleBasedStateMachine):
    """Whatever happens, the bounds hold and the counters agree with the contacts."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RoutingTable(OWN, bucket_size=3)
        self.now = 0.0

    @rule(number=st.integers(0, 60), network=st.integers(0, 5))
    def add(self, number: int, network: int) -> None:
        self.now += 1.0
        alive = {each.peer_id for each in self.table if not each.is_doubtful}
        addresses = public(f"1.{network}.0.{number}") if network else HERE
        expected = self.table.judge(peer(number), addresses)
        assert self.table.add(peer(number), addresses, self.now) is expected
        assert (peer(number) in self.table) == (expected in (Verdict.WANTED, Verdict.KNOWN))
        assert all(each in self.table for each in alive)

    @rule(number=st.integers(0, 60))
    def fail(self, number: int) -> None:
        self.table.failed(peer(number))

    @rule(number=st.integers(0, 60), network=st.integers(0, 5))
    def see(self, number: int, network: int) -> None:
        self.now += 1.0
        self.table.seen(peer(number), self.now, public(f"1.{network}.0.1") if network else ())

    @rule(number=st.integers(0, 60))
    def remove(self, number: int) -> None:
        self.table.remove(peer(number))

    @invariant()
    def bounds_hold(self) -> None:
        contacts = list(self.table)
        assert sum(self.table.bucket_sizes()) == len(contacts) == len(self.table)
        assert max(self.table.bucket_sizes(), default=0) <= 3
        assert not contacts or self.table.bucket_sizes()[-1]
        for group in {group for contact in contacts for group in contact.groups}:
            mine = [each for each in contacts if group in each.groups]
            assert len(mine) <= GROUP_IN_TABLE_MAX
            buckets = [self.table.bucket_number(each.place) for each in mine]
            assert max(map(buckets.count, buckets)) <= GROUP_IN_BUCKET_MAX


TestTable = Table.TestCase
TestTable.settings = settings(max_examples=25, stateful_step_count=40)
