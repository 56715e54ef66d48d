from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sbp2p_protocol.bitmap import Bitmap
from sbp2p_protocol.errors import LocalProtocolError
from sbp2p_protocol.picker import Picker
from sbp2p_protocol.picking import Picking

if TYPE_CHECKING:
    from collections.abc import Iterable


def seeded(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311


def full_picker(size: int, seed: int = 0, **options: Any) -> Picker[str]:
    return Picker(Bitmap.full(size), seeded(seed), **options)


def give(picker: Picker[str], peer: str, indices: Iterable[int], size: int) -> None:
    picker.bits_gained(peer, 0, Bitmap(size, indices).to_bytes())
    while not picker.settle():
        pass


def test_rarest_block_comes_first() -> None:
    picker = full_picker(3)
    for peer in "abc":
        picker.peer_joined(peer)
    give(picker, "a", [0, 1, 2], 3)
    give(picker, "b", [0, 1], 3)
    give(picker, "c", [0], 3)
    assert picker.pick("a", 3) == [2, 1, 0]


def test_blocks_of_seeds_alone_are_rarest() -> None:
    picker = full_picker(4)
    picker.peer_joined("seed")
    picker.everything_gained("seed")
    picker.peer_joined("leech")
    give(picker, "leech", [0, 1, 2], 4)
    assert picker.pick("seed", 1) == [3]


def test_ties_are_broken_at_random() -> None:
    first = Counter[int]()
    for seed in range(400):
        picker = full_picker(4, seed)
        picker.peer_joined("a")
        picker.everything_gained("a")
        first[picker.pick("a", 1)[0]] += 1
    assert set(first) == {0, 1, 2, 3}
    assert min(first.values()) > 60


def test_only_missing_blocks_are_picked() -> None:
    picker = Picker[str](Bitmap(10, [2, 5]), seeded(1))
    picker.peer_joined("a")
    picker.everything_gained("a")
    assert sorted(picker.pick("a", 10)) == [2, 5]
    assert picker.pick("a", 10) == []


def test_preferred_order_comes_first_and_released_blocks_return_to_it() -> None:
    picker = full_picker(8)
    picker.peer_joined("a")
    picker.everything_gained("a")
    picker.prefer([6, 1, 3])
    assert picker.pick("a", 3) == [6, 1, 3]
    assert picker.released("a", 1)
    assert picker.pick("a", 1) == [1]
    assert sorted(picker.pick("a", 8)) == [0, 2, 4, 5, 7]


def test_sequential_order_with_a_partial_peer() -> None:
    picker = full_picker(6)
    picker.peer_joined("a")
    give(picker, "a", [1, 4, 5], 6)
    picker.prefer(range(6))
    assert picker.pick("a", 9) == [1, 4, 5]


def test_it_is_no_endgame_while_blocks_are_free() -> None:
    picker = full_picker(2)
    for peer in "ab":
        picker.peer_joined(peer)
        picker.everything_gained(peer)
    picker.pick("a", 1)
    assert not picker.endgame


def duplicate(picker: Picker[str], peer: str) -> int | None:
    """Ask a peer, too, for the oldest block that it may be asked for."""
    others = list(picker.others_in_flight(peer)) if picker.endgame else []
    return next((index for index, _ in others if picker.ask_another(peer, index)), None)


def test_endgame_asks_a_second_peer_and_names_whom_to_cancel() -> None:
    picker = full_picker(2)
    for peer in "abc":
        picker.peer_joined(peer)
        picker.everything_gained(peer)
    first, second = picker.pick("a", 2)
    assert picker.endgame
    assert duplicate(picker, "a") is None
    assert list(picker.others_in_flight("b")) == [(first, "a"), (second, "a")]
    assert duplicate(picker, "b") == first
    assert duplicate(picker, "c") == second
    assert duplicate(picker, "c") is None
    assert picker.done(first) == ["a", "b"]
    assert picker.done(first) == []
    assert picker.missing_count == 1


def test_endgame_is_bounded() -> None:
    picker = full_picker(10, max_duplicates=3)
    for peer in "ab":
        picker.peer_joined(peer)
        picker.everything_gained(peer)
    picker.pick("a", 10)
    taken = [duplicate(picker, "b") for _ in range(5)]
    assert [index is None for index in taken] == [False, False, False, True, True]


def test_endgame_when_the_rest_is_with_nobody() -> None:
    picker = full_picker(3)
    for peer in "ab":
        picker.peer_joined(peer)
        give(picker, peer, [0, 1], 3)
    assert len(picker.pick("a", 5)) == 2
    assert picker.endgame
    assert picker.unavailable_count == 1
    assert duplicate(picker, "b") in (0, 1)


@pytest.mark.parametrize("picking", [Picking.RANDOM, Picking.SEQUENTIAL])
def test_other_ways_of_picking_take_every_block_once(picking: Picking) -> None:
    picker = full_picker(40, picking=picking)
    picker.peer_joined("part")
    give(picker, "part", range(0, 40, 2), 40)
    picker.peer_joined("seed")
    picker.everything_gained("seed")
    from_part, from_seed = picker.pick("part", 40), picker.pick("seed", 40)
    assert sorted(from_part) == list(range(0, 40, 2))
    assert sorted(from_seed) == list(range(1, 40, 2))
    in_order = from_part == sorted(from_part) and from_seed == sorted(from_seed)
    assert in_order is (picking is Picking.SEQUENTIAL)


def test_random_picking_does_not_look_at_rarity() -> None:
    common: list[int] = []
    for seed in range(200):
        picker = full_picker(8, seed, picking=Picking.RANDOM)
        for peer in "ab":
            picker.peer_joined(peer)
        give(picker, "a", range(8), 8)
        give(picker, "b", range(4), 8)
        common += [index for index in picker.pick("a", 1) if index < 4]
    assert 70 < len(common) < 130


def test_peer_that_leaves_gives_its_blocks_back() -> None:
    picker = full_picker(4)
    for peer in "ab":
        picker.peer_joined(peer)
        picker.everything_gained(peer)
    taken = picker.pick("a", 4)
    assert sorted(picker.peer_left("a")) == sorted(taken)
    assert sorted(picker.pick("b", 4)) == [0, 1, 2, 3]


def test_late_block_counts_although_nobody_is_asked() -> None:
    picker = full_picker(1)
    picker.peer_joined("a")
    picker.everything_gained("a")
    assert picker.pick("a", 1) == [0]
    picker.released("a", 0)
    assert picker.done(0) == []
    assert picker.missing_count == 0
    assert picker.pick("a", 1) == []


def test_peer_that_lost_a_block_has_the_rest() -> None:
    picker = full_picker(20)
    picker.peer_joined("a")
    picker.everything_gained("a")
    picker.block_lost("a", 7)
    while not picker.settle():
        pass
    assert not picker.has("a", 7)
    assert sorted(picker.pick("a", 20)) == [index for index in range(20) if index != 7]
    assert picker.unavailable_count == 1


def test_peer_joins_once() -> None:
    picker = full_picker(1)
    picker.peer_joined("a")
    with pytest.raises(LocalProtocolError):
        picker.peer_joined("a")


def test_large_buckets_and_sparse_peers_are_served() -> None:
    size = 50_000
    picker = full_picker(size)
    for peer in ("dense", "sparse"):
        picker.peer_joined(peer)
    give(picker, "dense", list(range(size)), size)
    few = list(range(0, size, 5_000))
    give(picker, "sparse", few, size)
    assert sorted(picker.pick("sparse", 100)) == few
    assert not picker.interesting("sparse")
    assert picker.pick("sparse", 1) == []
    assert len(picker.pick("dense", size)) == size - len(few)


class PickerModel(RuleBasedStateMachine):
    """The picker against sets: who has what, who is asked for what, what is done."""

    size = 37
    names = st.sampled_from("abcd")
    indices = st.integers(0, size - 1)

    def __init__(self) -> None:
        super().__init__()
        self.missing = set(range(0, self.size, 2)) | {1, 3, 35}
        self.picker = Picker[str](Bitmap(self.size, self.missing), seeded(5), max_duplicates=4)
        self.has: dict[str, set[int]] = {}
        self.asked: dict[str, set[int]] = {}

    def free(self) -> set[int]:
        return self.missing.difference(*self.asked.values())

    @rule(peer=names)
    def join(self, peer: str) -> None:
        if peer not in self.has:
            self.picker.peer_joined(peer)
            self.has[peer] = set()
            self.asked[peer] = set()

    @rule(peer=names)
    def leave(self, peer: str) -> None:
        if self.has.pop(peer, None) is not None:
            mine = self.asked.pop(peer)
            freed = self.picker.peer_left(peer)
            assert set(freed) == mine.difference(*self.asked.values())

    @rule(peer=names, start=st.sampled_from([0, 8, 24]), bits=st.binary(max_size=2))
    def gain_bits(self, peer: str, start: int, bits: bytes) -> None:
        if peer in self.has and start + 8 * len(bits) <= 40:
            value = int.from_bytes(bits, "little")
            value &= (1 << max(0, self.size - start)) - 1
            self.picker.bits_gained(peer, start, value.to_bytes(len(bits), "little"))
            self.has[peer] |= {start + bit for bit in range(16) if value >> bit & 1}

    @rule(peer=names, index=indices)
    def gain_block(self, peer: str, index: int) -> None:
        if peer in self.has:
            self.picker.block_gained(peer, index)
            self.has[peer].add(index)

    @rule(peer=names)
    def gain_everything(self, peer: str) -> None:
        if peer in self.has:
            self.picker.everything_gained(peer)
            self.has[peer] = set(range(self.size))

    @rule(peer=names, index=indices)
    def lose_block(self, peer: str, index: int) -> None:
        if peer in self.has:
            self.settle()
            self.picker.block_lost(peer, index)
            self.has[peer].discard(index)

    @rule()
    def settle(self) -> None:
        while not self.picker.settle(1):
            pass

    @rule(peer=names, limit=st.integers(0, 5))
    def pick(self, peer: str, limit: int) -> None:
        if peer in self.has:
            picked = self.picker.pick(peer, limit)
            assert len(set(picked)) == len(picked) <= limit
            assert set(picked) <= self.free() & self.has[peer]
            self.asked[peer] |= set(picked)

    @rule(peer=names)
    def pick_settled(self, peer: str) -> None:
        if peer in self.has:
            self.settle()
            partial = [name for name in self.has if len(self.has[name]) < self.size]
            candidates = self.free() & self.has[peer]
            picked = self.picker.pick(peer, 1)
            assert bool(picked) == bool(candidates)
            if picked and all(self.has.values()) and partial == list(self.has):
                counts = {i: sum(i in has for has in self.has.values()) for i in candidates}
                assert counts[picked[0]] == min(counts.values())
            self.asked[peer] |= set(picked)

    @rule(peer=names)
    def duplicate(self, peer: str) -> None:
        if peer in self.has:
            index = duplicate(self.picker, peer)
            if index is not None:
                assert index in self.missing
                assert index in self.has[peer]
                assert index not in self.asked[peer]
                assert sum(index in asked for asked in self.asked.values()) == 1
                assert not any(self.free() & has for has in self.has.values())
                self.asked[peer].add(index)

    @precondition(lambda self: any(self.asked.values()))
    @rule(data=st.data(), fate=st.sampled_from(["done", "released"]))
    def answer(self, data: st.DataObject, fate: str) -> None:
        debts = [(peer, i) for peer, asked in self.asked.items() for i in sorted(asked)]
        peer, index = data.draw(st.sampled_from(debts))
        if fate == "done":
            others = {name for name, asked in self.asked.items() if index in asked}
            assert set(self.picker.done(index)) == others
            self.missing.discard(index)
            for asked in self.asked.values():
                asked.discard(index)
        else:
            self.asked[peer].discard(index)
            assert self.picker.released(peer, index) == (index in self.free())

    @rule(index=indices)
    def late(self, index: int) -> None:
        if index in self.free():
            assert self.picker.done(index) == []
            self.missing.discard(index)

    @invariant()
    def agrees(self) -> None:
        assert self.picker.missing_count == len(self.missing)
        in_flight = set[int]().union(*self.asked.values())
        assert self.picker.in_flight_count == len(in_flight)
        duplicated = [i for i in in_flight if sum(i in asked for asked in self.asked.values()) > 1]
        assert len(duplicated) <= 4
        for peer, asked in self.asked.items():
            assert set(self.picker.in_flight_of(peer)) == asked

    def teardown(self) -> None:
        # everything that remains gets picked, once a peer has it
        if "z" not in self.has:
            self.picker.peer_joined("z")
        self.picker.everything_gained("z")
        for peer, asked in self.asked.items():
            for index in asked:
                self.picker.released(peer, index)
        assert sorted(self.picker.pick("z", self.size)) == sorted(self.missing)


PickerModel.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestPickerModel = PickerModel.TestCase
