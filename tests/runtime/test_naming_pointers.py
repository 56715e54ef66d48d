"""What is remembered of names: verdicts, evidence, bounds, damage; and any order of statements."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sbp2p.errors import StoreError
from sbp2p.naming.pointers import OwnPointer, Pointers, Verdict
from sbp2p_keys.identity import PrivateKey
from sbp2p_protocol.catalog import Catalog, CatalogEntry, catalog_cid, sign_catalog
from sbp2p_protocol.cid import DAG_CBOR, Cid
from sbp2p_protocol.ipns import (
    SECOND_NS,
    IpnsRecord,
    ipfs_path,
    make_ipns_record,
    read_ipns_record,
)

if TYPE_CHECKING:
    from pathlib import Path

KEY, OTHER = PrivateKey.from_seed(b"k" * 32), PrivateKey.from_seed(b"o" * 32)
NOW = 1_800_000_000.0


def record(
    sequence: int, value: bytes = b"/x", *, until: float = NOW + 100, key: PrivateKey = KEY
) -> IpnsRecord:
    encoded = make_ipns_record(
        key, value, sequence=sequence, valid_until_ns=int(until) * SECOND_NS, ttl_ns=0
    )
    return read_ipns_record(encoded, key.peer_id)


def entry(number: int, manifest: int = 0) -> CatalogEntry:
    return CatalogEntry(number, Cid(1, DAG_CBOR, 0x1E, bytes([manifest or number]) * 32))


def catalog(sequence: int, *entries: CatalogEntry, key: PrivateKey = KEY) -> bytes:
    made = Catalog(publisher=key.peer_id, sequence=sequence, models={"m": entries})
    return sign_catalog(made, key)


def own(sequence: int, *entries: CatalogEntry, until: float = NOW + 100) -> OwnPointer:
    block = catalog(sequence, *entries)
    value = ipfs_path(catalog_cid(block))
    made = Catalog(publisher=KEY.peer_id, sequence=sequence, models={"m": entries})
    return OwnPointer(record(sequence, value, until=until), made, block, NOW)


def test_sequences_only_grow() -> None:
    with Pointers(None) as pointers:
        assert pointers.pointer(KEY.peer_id) is None
        assert pointers.take(record(5), NOW) is Verdict.NEWER
        assert pointers.take(record(4), NOW + 1) is Verdict.OLDER
        assert pointers.take(record(5, until=NOW + 200), NOW + 2) is Verdict.SAME
        assert pointers.take(record(5, until=NOW + 50), NOW + 3) is Verdict.SAME
        assert pointers.take(record(5, until=NOW + 200), NOW + 40) is Verdict.SAME
        known = pointers.pointer(KEY.peer_id)
        assert known is not None
        assert known.record == record(5, until=NOW + 200), "the one that lasts longest"
        assert known.seen == NOW + 40
        assert pointers.take(record(6), NOW) is Verdict.NEWER
        assert pointers.pointer(OTHER.peer_id) is None


def test_two_values_under_one_sequence_are_kept_as_evidence(tmp_path: Path) -> None:
    path = tmp_path / "names.sqlite"
    with Pointers(path) as pointers:
        pointers.take(record(5, b"/a"), NOW)
        assert pointers.take(record(5, b"/b"), NOW + 1) is Verdict.CONTRADICTED
        assert pointers.take(record(5, b"/c"), NOW + 2) is Verdict.CONTRADICTED
        known = pointers.pointer(KEY.peer_id)
        assert known is not None
        assert known.record.value == b"/a", "the first one stays"
    with Pointers(path) as pointers:
        (evidence,) = pointers.evidence()
        assert (evidence.publisher, evidence.kind, evidence.subject) == (
            KEY.peer_id,
            "pointer",
            "5",
        )
        first = read_ipns_record(evidence.first, evidence.publisher)
        assert first.contradicts(read_ipns_record(evidence.second, evidence.publisher))
        assert evidence.found == NOW + 1
        assert pointers.evidence(OTHER.peer_id) == []
        assert pointers.evidence(KEY.peer_id) == [evidence]


def test_versions_only_grow_and_contradictions_need_both_documents() -> None:
    with Pointers(None) as pointers:
        take = pointers.take_version
        assert take(KEY.peer_id, "m", entry(3), NOW, document=b"three") is Verdict.NEWER
        assert take(KEY.peer_id, "m", entry(2), NOW) is Verdict.OLDER
        assert take(KEY.peer_id, "m", entry(3), NOW) is Verdict.SAME
        assert take(KEY.peer_id, "m", entry(3, 99), NOW) is Verdict.CONTRADICTED
        assert pointers.evidence() == []
        other = take(KEY.peer_id, "m", entry(3, 99), NOW, document=b"another three")
        assert other is Verdict.CONTRADICTED
        (evidence,) = pointers.evidence(KEY.peer_id)
        assert (evidence.kind, evidence.subject) == ("version", "m@3")
        assert (evidence.first, evidence.second) == (b"three", b"another three")
        known = pointers.version(KEY.peer_id, "m")
        assert known is not None
        assert known.entry == entry(3)
        assert pointers.version(KEY.peer_id, "n") is None


def test_a_catalog_is_kept_until_the_next_one() -> None:
    with Pointers(None) as pointers:
        assert pointers.catalog(KEY.peer_id) is None
        pointers.keep_catalog(KEY.peer_id, catalog(1, entry(1)), NOW)
        pointers.keep_catalog(KEY.peer_id, catalog(2, entry(2)), NOW)
        known = pointers.catalog(KEY.peer_id)
        assert known is not None
        assert known.block == catalog(2, entry(2))
        assert known.cid == catalog_cid(known.block)
        assert known.catalog.find("m") == entry(2)


def test_everything_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(catalog(1, entry(1)))
    for name, value in [
        ("POINTERS_MAX", 3),
        ("VERSIONS_KEPT_MAX", 3),
        ("EVIDENCE_MAX", 2),
        ("CATALOGS_KEPT_MAX", 3 * size),
    ]:
        monkeypatch.setattr(f"sbp2p.naming.pointers.{name}", value)
    keys = [PrivateKey.from_seed(bytes([number]) * 32) for number in range(1, 7)]
    with Pointers(None) as pointers:
        for number, key in enumerate(keys):
            now = NOW + number
            pointers.take(record(1, b"/a", key=key), now)
            pointers.take(record(1, b"/b", key=key), now)
            pointers.take_version(key.peer_id, "m", entry(1), now)
            pointers.keep_catalog(key.peer_id, catalog(1, entry(1), key=key), now)
        kept = [key for key in keys if pointers.pointer(key.peer_id)]
        assert kept == keys[3:]
        assert [key for key in keys if pointers.version(key.peer_id, "m")] == keys[3:]
        assert [key for key in keys if pointers.catalog(key.peer_id)] == keys[3:]
        assert [each.publisher for each in pointers.evidence()] == [k.peer_id for k in keys[:2]]


# -- what is published here ------------------------------------------------------------------------


def test_a_sequence_is_used_for_one_catalog_only() -> None:
    first, second = own(5, entry(1)), own(5, entry(2))
    with Pointers(None) as pointers:
        assert pointers.own(KEY.peer_id) is None
        assert pointers.set_own(first.record, first.block, NOW)
        assert pointers.set_own(first.record, first.block, NOW), "nothing new"
        assert not pointers.set_own(second.record, second.block, NOW)
        longer = own(5, entry(1), until=NOW + 500)
        assert pointers.set_own(longer.record, longer.block, NOW)
        assert not pointers.set_own(first.record, first.block, NOW), "shorter"
        later = own(6, entry(2))
        assert pointers.set_own(later.record, later.block, NOW)
        assert not pointers.set_own(longer.record, longer.block, NOW)
        assert pointers.own(KEY.peer_id) == later


# -- the file --------------------------------------------------------------------------------------


def test_a_kill_loses_nothing_that_was_said(tmp_path: Path) -> None:
    path = tmp_path / "names.sqlite"
    killed = Pointers(path)
    mine = own(5, entry(1))
    killed.set_own(mine.record, mine.block, NOW)
    # not closed: what a killed process leaves is the file and its log
    with Pointers(path) as pointers:
        assert pointers.own(KEY.peer_id) == mine
    killed.close()


def test_a_damaged_file_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "names.sqlite"
    path.write_bytes(b"not a database" * 1000)
    with Pointers(path) as pointers:
        assert "damaged" in pointers.begun_anew
        assert pointers.take(record(5), NOW) is Verdict.NEWER
    assert "kept as" in caplog.text
    with Pointers(path) as pointers:
        assert pointers.begun_anew == ""
        assert pointers.take(record(5), NOW) is Verdict.SAME


def test_rows_that_make_no_sense_count_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "names.sqlite"
    with Pointers(path) as pointers:
        mine = own(5, entry(1))
        pointers.set_own(mine.record, mine.block, NOW)
        pointers.take(record(5), NOW)
        pointers.take_version(KEY.peer_id, "m", entry(3), NOW)
        pointers.keep_catalog(KEY.peer_id, mine.block, NOW)
    with closing(sqlite3.connect(path)) as connection:
        for statement in (
            "UPDATE pointer SET record = x'00'",
            "UPDATE catalog SET block = x'00'",
            "UPDATE version SET manifest = x'00'",
            "UPDATE own SET record = x'00'",
        ):
            connection.execute(statement)
        connection.commit()
    with Pointers(path) as pointers:
        assert pointers.pointer(KEY.peer_id) is None
        assert pointers.catalog(KEY.peer_id) is None
        assert pointers.version(KEY.peer_id, "m") is None
        assert pointers.own(KEY.peer_id) is None
        assert pointers.take(record(1), NOW) is Verdict.NEWER


def test_where_no_file_can_be_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "names.sqlite").mkdir()
    with pytest.raises(StoreError):
        Pointers(tmp_path / "names.sqlite")


class PointerMachine(RuleBasedStateMachine):
    """Whatever comes in whatever order: nothing goes back, and every lie is found."""

    def __init__(self) -> None:
        super().__init__()
        self.pointers = Pointers(None)
        self.said: dict[int, set[bytes]] = {}
        self.first: dict[int, bytes] = {}
        self.highest = 0

    @rule(sequence=st.integers(1, 5), value=st.sampled_from([b"/a", b"/b"]), life=st.integers(1, 3))
    def take(self, sequence: int, value: bytes, life: int) -> None:
        verdict = self.pointers.take(record(sequence, value, until=NOW + life), NOW)
        if sequence < self.highest:
            assert verdict is Verdict.OLDER
            return
        if sequence > self.highest:
            assert verdict is Verdict.NEWER
            self.first[sequence] = value
        else:
            same = value == self.first[sequence]
            assert verdict is (Verdict.SAME if same else Verdict.CONTRADICTED)
        self.highest = sequence
        self.said.setdefault(sequence, set()).add(value)

    @invariant()
    def the_best_is_kept(self) -> None:
        known = self.pointers.pointer(KEY.peer_id)
        if known is None:
            assert not self.highest
            return
        assert known.record.sequence == self.highest
        assert known.record.value == self.first[self.highest]

    @invariant()
    def lies_are_evidence(self) -> None:
        found = {int(each.subject) for each in self.pointers.evidence()}
        assert found == {number for number, values in self.said.items() if len(values) > 1}

    def teardown(self) -> None:
        self.pointers.close()


TestPointerMachine = PointerMachine.TestCase
TestPointerMachine.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
