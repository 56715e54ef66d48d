"""What a DHT node keeps for others: bounds, fairness, expiry, and changes, against models."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sbp2p_keys.identity import PeerId, PrivateKey
from sbp2p_protocol.errors import IntegrityError, RemoteProtocolError
from sbp2p_protocol.ipns import SECOND_NS, ipns_key, make_ipns_record
from sbp2p_protocol.limits import PROVIDER_ADDRESS_BYTES, PROVIDER_ADDRESSES_MAX
from sbp2p_protocol.provider_records import (
    ADDRESSES_VALID_S,
    PROVIDER_VALID_S,
    AddressRow,
    ProviderKey,
    ProviderRecords,
    ProviderRow,
)
from sbp2p_protocol.shares import Quota, Shares
from sbp2p_protocol.value_records import (
    NAMESPACES,
    VALUE_VALID_S,
    ValueRecords,
    ValueRow,
    best_value,
    validate_value,
)

KEYS = [PrivateKey.from_seed(bytes([number]) * 32) for number in range(1, 6)]
PEERS = [key.peer_id for key in KEYS]
RNG = Random(1)  # noqa: S311
NOW = 1_800_000_000.0


def record(owner: int, sequence: int, *, until: float = NOW + 1e6, value: bytes = b"/x") -> bytes:
    return make_ipns_record(
        KEYS[owner],
        value,
        sequence=sequence,
        valid_until_ns=int(until * SECOND_NS),
        ttl_ns=SECOND_NS,
    )


# -- shares and quotas -----------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from("abc"), st.booleans())))
def test_the_account_with_most_gives_up_its_oldest(steps: list[tuple[int, str, bool]]) -> None:
    shares: Shares[int] = Shares()
    model: dict[int, str] = {}  # oldest first
    for item, account, keep in steps:
        model.pop(item, None)
        if keep:
            shares.put(item, account)
            model[item] = account
        else:
            shares.discard(item)
        assert len(shares) == len(model)
        assert sorted(shares.accounts()) == sorted(set(model.values()))
        for name in "abc":
            mine = [each for each, owner in model.items() if owner == name]
            assert shares.count(name) == len(mine)
            if mine:
                assert shares.oldest(name) == mine[0]
        if model:
            victim = shares.victim()
            assert shares.oldest(model[victim]) == victim
            assert shares.count(model[victim]) == max(map(shares.count, "abc"))
            assert shares.account_of(victim) == model[victim]


def test_a_quota_is_a_burst_and_then_a_rate() -> None:
    quota = Quota(burst=3, rate=0.5)
    assert [quota.take("a", 10.0) for _ in range(4)] == [True, True, True, False]
    assert quota.take("b", 10.0)
    assert not quota.take("a", 11.0)
    assert quota.take("a", 12.0)
    assert [quota.take("a", 1000.0) for _ in range(4)] == [True, True, True, False]
    assert not quota.take("a", 999.0), "a clock that goes back gives nothing"


def test_a_quota_remembers_the_latest_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbp2p_protocol.shares.QUOTA_ACCOUNTS_MAX", 2)
    quota = Quota(burst=1, rate=0)
    assert quota.take("a", 0)
    assert quota.take("b", 0)
    assert quota.take("c", 0)
    assert not quota.take("c", 0)
    assert quota.take("a", 0), "forgotten"


# -- provider records ------------------------------------------------------------------------------


def test_a_record_is_found_until_its_time_has_passed() -> None:
    records = ProviderRecords()
    records.add(b"k", PEERS[0], [b"here"], NOW)
    (found,) = records.find(b"k", NOW, count=5, rng=RNG)
    assert (found.provider, found.addresses) == (PEERS[0], (b"here",))
    (found,) = records.find(b"k", NOW + ADDRESSES_VALID_S, count=5, rng=RNG)
    assert found.addresses == ()
    assert records.find(b"k", NOW + PROVIDER_VALID_S, count=5, rng=RNG) == []
    assert records.expire(NOW + PROVIDER_VALID_S - 1) == 0
    assert records.expire(NOW + PROVIDER_VALID_S) == 1
    assert len(records) == 0


def test_announcing_again_prolongs_and_new_addresses_replace_old_ones() -> None:
    records = ProviderRecords()
    records.add(b"k", PEERS[0], [b"old"], NOW)
    records.add(b"other", PEERS[0], [b"new"], NOW + 60)
    records.add(b"k", PEERS[0], [], NOW + 120)
    assert records.find(b"k", NOW + PROVIDER_VALID_S, count=5, rng=RNG)
    (found,) = records.find(b"k", NOW, count=5, rng=RNG)
    assert found.addresses == (b"new",)


def test_addresses_are_bounded_by_number_and_by_length() -> None:
    records = ProviderRecords()
    many = [bytes([number]) * 9 for number in range(30)]
    records.add(b"k", PEERS[0], [many[0], *many], NOW)
    (found,) = records.find(b"k", NOW, count=1, rng=RNG)
    assert found.addresses == tuple(many[:PROVIDER_ADDRESSES_MAX])
    records.add(b"k", PEERS[0], [b"x" * 500, b"y" * 13, b"z" * 12, b"w" * 1000], NOW)
    (found,) = records.find(b"k", NOW, count=1, rng=RNG)
    assert sum(map(len, found.addresses)) == PROVIDER_ADDRESS_BYTES
    assert [address[:1] for address in found.addresses] == [b"x", b"z"]


def test_a_flooder_pushes_out_its_own_records() -> None:
    records = ProviderRecords(most=100)
    for number in range(40):
        records.add(b"honest%d" % number, PEERS[0], [b"a"], NOW + number, account="honest")
    for number in range(10_000):
        records.add(b"flood%d" % number, PEERS[1], [b"a"], NOW + number, account="flooder")
    assert len(records) == 100
    for number in range(40):
        assert records.find(b"honest%d" % number, NOW, count=1, rng=RNG)
    assert records.find(b"flood9999", NOW, count=1, rng=RNG)
    assert not records.find(b"flood0", NOW, count=1, rng=RNG)


def test_many_ids_at_one_address_do_not_push_others_out_of_a_key() -> None:
    records = ProviderRecords(per_key=3)
    records.add(b"k", PEERS[0], [b"a"], NOW, account="one")
    records.add(b"k", PEERS[1], [b"a"], NOW, account="two")
    for peer in PEERS[2:]:
        records.add(b"k", peer, [b"a"], NOW, account="sybil")
    found = {each.provider for each in records.find(b"k", NOW, count=9, rng=RNG)}
    assert found == {PEERS[0], PEERS[1], PEERS[4]}


def test_an_account_has_a_bound_of_its_own() -> None:
    records = ProviderRecords(most=100, each=5)
    for number in range(9):
        records.add(b"%d" % number, PEERS[0], [b"a"], NOW)
    assert [row.key for row in records.rows()] == [b"%d" % number for number in range(4, 9)]


def test_of_many_providers_a_few_are_drawn() -> None:
    records = ProviderRecords()
    for peer in PEERS:
        records.add(b"k", peer, [b"a"], NOW)
    drawn = {each.provider for _ in range(50) for each in records.find(b"k", NOW, count=2, rng=RNG)}
    assert len(records.find(b"k", NOW, count=2, rng=RNG)) == 2
    assert drawn == set(PEERS)


def test_when_too_much_changed_everything_is_written_anew() -> None:
    records = ProviderRecords(most=4)
    for number in range(20):
        records.add(b"%d" % number, PEERS[number % 3], [b"a"], NOW)
    changes = records.take_changes()
    assert changes.anew
    assert len(changes.records) == 4
    assert not changes.gone
    assert records.changes == 0


class ProviderMachine(RuleBasedStateMachine):
    """Any order of calls keeps the bounds, and what is written to a disk is what is here."""

    def __init__(self) -> None:
        super().__init__()
        self.records = ProviderRecords(most=6, each=4, per_key=3)
        self.now = NOW
        self.disk: dict[ProviderKey, ProviderRow] = {}
        self.told: dict[PeerId, AddressRow] = {}

    keys = st.integers(0, 3).map(lambda number: b"key%d" % number)
    peers = st.integers(0, len(PEERS) - 1)

    @rule(key=keys, peer=peers, account=st.sampled_from("abc"))
    def add(self, key: bytes, peer: int, account: str) -> None:
        self.records.add(key, PEERS[peer], [b"at%d" % peer], self.now, account=account)

    @rule(key=keys, peer=peers)
    def remove(self, key: bytes, peer: int) -> None:
        self.records.remove(key, PEERS[peer])

    @rule(hours=st.integers(1, 30))
    def pass_time(self, hours: int) -> None:
        self.now += hours * 3600
        self.records.expire(self.now)
        assert all(self.now - row.announced < PROVIDER_VALID_S for row in self.records.rows())

    @rule()
    def save(self) -> None:
        changes = self.records.take_changes()
        if changes.anew:
            self.disk.clear()
            self.told.clear()
        for item in changes.gone:
            self.disk.pop(item, None)
        for peer in changes.gone_addresses:
            self.told.pop(peer, None)
        self.disk.update({ProviderKey(row.key, row.provider): row for row in changes.records})
        self.told.update({row.provider: row for row in changes.addresses})
        assert set(self.disk.values()) == set(self.records.rows())
        assert set(self.told) == {row.provider for row in self.records.rows()}

    @rule()
    def restart(self) -> None:
        self.save()
        fresh = ProviderRecords(most=6, each=4, per_key=3)
        rows = sorted(self.disk.values(), key=lambda row: row.announced)
        fresh.restore(rows, self.told.values())
        assert set(fresh.rows()) == set(self.records.rows())
        for key in {row.key for row in rows}:
            before = self.records.find(key, self.now, count=9, rng=RNG)
            after = fresh.find(key, self.now, count=9, rng=RNG)
            assert {(each.provider, each.addresses) for each in before} == {
                (each.provider, each.addresses) for each in after
            }
        assert fresh.changes == 0
        self.records = fresh

    @invariant()
    def bounds_hold(self) -> None:
        rows = list(self.records.rows())
        assert len(rows) == len(self.records) <= 6
        for account in "abc":
            assert sum(row.account == account for row in rows) <= 4
        for number in range(4):
            assert sum(row.key == b"key%d" % number for row in rows) <= 3


TestProviderMachine = ProviderMachine.TestCase
TestProviderMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


# -- values ----------------------------------------------------------------------------------------


def test_a_better_value_takes_the_place_and_a_worse_one_does_not() -> None:
    values = ValueRecords()
    key = ipns_key(PEERS[0])
    assert values.put(key, record(0, 2), NOW, account="a")
    assert not values.put(key, record(0, 1), NOW, account="a")
    assert values.get(key, NOW) == ValueRow(key, record(0, 2), "a", NOW)
    assert values.put(key, record(0, 3), NOW + 1, account="b")
    assert values.get(key, NOW + 1) == ValueRow(key, record(0, 3), "b", NOW + 1)


def test_the_same_value_again_renews_its_time() -> None:
    values = ValueRecords()
    key = ipns_key(PEERS[0])
    values.put(key, record(0, 2), NOW, account="a")
    assert values.put(key, record(0, 2), NOW + 60, account="a")
    assert values.get(key, NOW + VALUE_VALID_S) is not None
    assert values.get(key, NOW + 60 + VALUE_VALID_S) is None
    assert values.expire(NOW + 60 + VALUE_VALID_S) == 1


def test_a_value_ends_with_its_validity_and_then_any_is_better() -> None:
    values = ValueRecords()
    key = ipns_key(PEERS[0])
    values.put(key, record(0, 9, until=NOW + 10), NOW, account="a")
    assert values.get(key, NOW + 10) is None
    assert values.put(key, record(0, 1), NOW + 10, account="a")


def test_what_may_not_stand_under_a_key_is_refused() -> None:
    values = ValueRecords()
    for key, value in [
        (ipns_key(PEERS[0]), record(1, 1)),
        (ipns_key(PEERS[0]), record(0, 1, until=NOW)),
        (b"/pk/" + PEERS[0].to_bytes(), KEYS[1].public_key.to_protobuf()),
        (b"/pk/garbage", KEYS[1].public_key.to_protobuf()),
        (b"/other/x", b"y"),
        (b"", b""),
    ]:
        with pytest.raises(RemoteProtocolError):
            values.put(key, value, NOW, account="a")
    assert len(values) == 0


def test_public_keys_are_kept_under_their_own_name() -> None:
    values = ValueRecords()
    key, value = b"/pk/" + PEERS[0].to_bytes(), KEYS[0].public_key.to_protobuf()
    assert values.put(key, value, NOW, account="a")
    assert values.get(key, NOW) is not None
    with pytest.raises(IntegrityError):
        validate_value(key, KEYS[1].public_key.to_protobuf(), NOW)


def test_the_best_of_several_values() -> None:
    key = ipns_key(PEERS[0])
    candidates = [record(0, 1), record(0, 3), b"garbage", record(1, 9), record(0, 2)]
    assert best_value(key, candidates, NOW) == record(0, 3)
    assert best_value(key, [b"garbage"], NOW) is None


def test_a_flooder_pushes_out_its_own_values() -> None:
    values = ValueRecords(most=4)
    for number in range(2):
        values.put(ipns_key(PEERS[number]), record(number, 1), NOW, account="honest")
    flood = [PrivateKey.from_seed(number.to_bytes(32, "big")) for number in range(100, 130)]
    for key in flood:
        encoded = make_ipns_record(key, b"/x", sequence=1, valid_until_ns=2**62, ttl_ns=0)
        values.put(ipns_key(key.peer_id), encoded, NOW, account="flooder")
    assert len(values) == 4
    assert all(values.get(ipns_key(PEERS[number]), NOW) for number in range(2))
    assert values.changes == 4
    assert values.take_changes().anew


class ValueMachine(RuleBasedStateMachine):
    """Any order of calls: the best valid value is kept, and the disk holds what is here."""

    def __init__(self) -> None:
        super().__init__()
        self.values = ValueRecords(most=3, each=2)
        self.now = NOW
        self.disk: dict[bytes, ValueRow] = {}

    @rule(owner=st.integers(0, 4), sequence=st.integers(0, 4), account=st.sampled_from("ab"))
    def put(self, owner: int, sequence: int, account: str) -> None:
        key, value = ipns_key(PEERS[owner]), record(owner, sequence, until=NOW + 5e5)
        before = self.values.get(key, self.now)
        try:
            kept = self.values.put(key, value, self.now, account=account)
        except RemoteProtocolError:
            assert self.now >= NOW + 5e5
            return
        expected = best_value(key, [value, *([before.value] if before else [])], self.now)
        after = self.values.get(key, self.now)
        assert kept == (expected == value)
        assert after is None or after.value == expected

    @rule(hours=st.integers(1, 60))
    def pass_time(self, hours: int) -> None:
        self.now += hours * 3600
        self.values.expire(self.now)
        assert all(self.values.get(row.key, self.now) for row in self.values.rows())

    @rule()
    def restart(self) -> None:
        changes = self.values.take_changes()
        if changes.anew:
            self.disk.clear()
        for key in changes.gone:
            self.disk.pop(key, None)
        self.disk.update({row.key: row for row in changes.records})
        assert set(self.disk.values()) == set(self.values.rows())
        fresh = ValueRecords(most=3, each=2)
        fresh.restore(sorted(self.disk.values(), key=lambda row: row.received), self.now)
        for row in self.disk.values():
            assert fresh.get(row.key, self.now) == self.values.get(row.key, self.now)
        self.disk = {row.key: row for row in fresh.rows()}
        self.values = fresh

    @invariant()
    def bounds_hold(self) -> None:
        rows = list(self.values.rows())
        assert len(rows) == len(self.values) <= 3
        assert all(sum(row.account == account for row in rows) <= 2 for account in "ab")


TestValueMachine = ValueMachine.TestCase
TestValueMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


@given(st.sampled_from([*NAMESPACES, b"/x/", b""]), st.binary(max_size=60), st.binary(max_size=90))
def test_garbage_raises_only_remote_errors(prefix: bytes, rest: bytes, value: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        validate_value(prefix + rest, value, NOW)
