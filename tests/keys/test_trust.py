from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_keys.errors import (
    BadTrustFileError,
    FileAccessError,
    FileMissingError,
    FilePermissionsError,
    MissingSignaturesError,
    NotAFileError,
    RevokedKeyError,
    SymlinkError,
)
from sbp2p_keys.identity import PeerId, PrivateKey
from sbp2p_keys.limits import TRUST_FILE_MAX
from sbp2p_keys.signing import SignedDocument
from sbp2p_keys.trust import (
    ANY_NAME,
    Pin,
    TrustPolicy,
    TrustStore,
    TrustVerdict,
    load_trust_store,
    save_trust_store,
)
from tests.keys.own_vectors import load_own_vectors

if TYPE_CHECKING:
    from pathlib import Path

VECTORS = load_own_vectors("trust_store")
ANN, BEN, CARL, DORA = (PrivateKey.from_seed(bytes([n]) * 32).peer_id for n in range(1, 5))
NOW = 1_000.0


# -- decisions -------------------------------------------------------------------------------------


def test_vector_text() -> None:
    store = TrustStore.from_bytes(VECTORS["text"].encode())
    assert store.to_bytes().decode() == VECTORS["text"]


@pytest.mark.parametrize("index", range(len(VECTORS["checks"])))
def test_vector_checks(index: int) -> None:
    case = VECTORS["checks"][index]
    stored = TrustStore.from_bytes(VECTORS["text"].encode())
    store = replace(stored, policy=TrustPolicy(case["policy"]))
    decision = store.check(PeerId.parse(case["publisher"]), case["name"], case["now"])
    assert decision.verdict is TrustVerdict(case["verdict"])
    assert decision.reason
    assert "\n" not in decision.reason


@pytest.mark.parametrize("policy", TrustPolicy)
def test_revocation_beats_every_pin(policy: TrustPolicy) -> None:
    store = TrustStore(policy).pin("m", ANN, NOW).pin(ANY_NAME, ANN, NOW)
    assert store.check(ANN, "m", NOW).verdict is TrustVerdict.ACCEPT
    store = store.revoke(ANN, NOW, "key was on a stolen disk")
    for name in ("m", "other"):
        decision = store.check(ANN, name, NOW)
        assert decision.verdict is TrustVerdict.REFUSE
        assert "stolen disk" in decision.reason
    assert store.publishers("m", NOW) == frozenset()
    with pytest.raises(RevokedKeyError, match="new key"):
        store.pin("m", ANN, NOW)


def test_revocation_also_holds_for_what_was_signed_before() -> None:
    store = TrustStore(TrustPolicy.ANY).revoke(ANN, NOW)
    assert store.check(ANN, "m", NOW - 500).verdict is TrustVerdict.REFUSE


def test_first_revocation_stays() -> None:
    store = TrustStore().revoke(ANN, 1, "first").revoke(ANN, 2, "second")
    assert store.revoked[ANN].reason == "first"


@pytest.mark.parametrize("policy", TrustPolicy)
def test_pinned_name_is_closed_to_others(policy: TrustPolicy) -> None:
    store = TrustStore(policy).pin("m", ANN, NOW).pin(ANY_NAME, BEN, NOW)
    for other in (BEN, CARL):
        decision = store.check(other, "m", NOW)
        assert decision.verdict is TrustVerdict.REFUSE
        assert str(ANN) in decision.reason
        assert str(other) in decision.reason


def test_a_key_hands_over_to_the_next() -> None:
    store = TrustStore().pin("m", ANN, NOW, until=NOW + 10).pin("m", BEN, NOW)
    assert store.publishers("m", NOW + 9) == {ANN, BEN}
    assert store.publishers("m", NOW + 10) == {BEN}
    assert store.check(ANN, "m", NOW + 10).verdict is TrustVerdict.REFUSE


@pytest.mark.parametrize(
    ("policy", "verdict"),
    [
        (TrustPolicy.FIRST_USE, TrustVerdict.ASK),
        (TrustPolicy.ANY, TrustVerdict.ASK),
        (TrustPolicy.PINNED_ONLY, TrustVerdict.REFUSE),
    ],
)
def test_name_whose_pins_all_ended_does_not_fall_open(
    policy: TrustPolicy, verdict: TrustVerdict
) -> None:
    store = TrustStore(policy).pin("m", ANN, NOW).pin("m", BEN, NOW, until=NOW)
    store = store.pin(ANY_NAME, CARL, NOW).revoke(ANN, NOW)
    for publisher in (BEN, CARL, DORA):
        assert store.check(publisher, "m", NOW).verdict is verdict


def test_first_use_then_pin() -> None:
    store = TrustStore()
    assert store.check(ANN, "m", NOW).verdict is TrustVerdict.ASK
    store = store.pin("m", ANN, NOW)
    assert store.check(ANN, "m", NOW).verdict is TrustVerdict.ACCEPT
    assert store.unpin("m", ANN) == TrustStore()


def test_unpin_one_of_two_and_none() -> None:
    store = TrustStore().pin("m", ANN, NOW).pin("m", BEN, NOW)
    assert store.unpin("m", ANN).publishers("m", NOW) == {BEN}
    assert store.unpin("m", CARL) == store
    assert store.unpin("other", ANN) == store


def test_pinning_again_replaces() -> None:
    store = TrustStore().pin("m", ANN, 1, until=5).pin("m", ANN, 2)
    assert store.pins["m"] == (Pin(ANN, 2, None),)


def test_changes_leave_the_store_as_it_was() -> None:
    store = TrustStore().pin("m", ANN, NOW)
    before = store.to_bytes()
    store.pin("m", BEN, NOW)
    store.revoke(ANN, NOW)
    store.unpin("m", ANN)
    assert store.to_bytes() == before


def test_pinned_publishers_are_what_a_document_requires() -> None:
    keys = [PrivateKey.from_seed(bytes([n]) * 32) for n in range(1, 4)]
    document = SignedDocument("sbp2p-test", b"payload").sign(keys[0]).sign(keys[1])
    store = TrustStore()
    for key in keys:
        store = store.pin("m", key.peer_id, NOW)
    assert document.require(store.publishers("m", NOW), 2) == {ANN, BEN}
    store = store.revoke(BEN, NOW)
    with pytest.raises(MissingSignaturesError):
        document.require(store.publishers("m", NOW), 2)


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[2J", "n" * 257, "\ud800"])
def test_bad_names(name: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # each says something else
        TrustStore().pin(name, ANN, NOW)


def test_bad_times_and_reasons() -> None:
    with pytest.raises(ValueError, match="not a time"):
        TrustStore().pin("m", ANN, -1)
    with pytest.raises(ValueError, match="not a time"):
        TrustStore().revoke(ANN, -1)
    with pytest.raises(ValueError, match="reason"):
        TrustStore().revoke(ANN, NOW, "r" * 1025)


# -- JSON ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VECTORS["bad"])
def test_bad_files(name: str) -> None:
    with pytest.raises(BadTrustFileError) as caught:
        TrustStore.from_bytes(VECTORS["bad"][name].encode())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"\xff", b"[" * 100_000, bytes(TRUST_FILE_MAX + 1)])
def test_more_bad_files(data: bytes) -> None:
    with pytest.raises(BadTrustFileError):
        TrustStore.from_bytes(data)


def test_hand_edited_file_is_read() -> None:
    value = json.loads(VECTORS["text"])
    shuffled = dict(reversed(value.items()))
    assert TrustStore.from_bytes(json.dumps(shuffled).encode()).to_bytes() == (
        VECTORS["text"].encode()
    )


def test_store_that_could_not_be_read_again_is_not_written() -> None:
    name = "n" * 250
    pins = {f"{name}{n:06}": (Pin(ANN, 0),) for n in range(20_000)}
    with pytest.raises(ValueError, match="at most"):
        TrustStore(pins=pins).to_bytes()


peers = st.sampled_from([ANN, BEN, CARL, DORA])
names = st.one_of(
    st.just(ANY_NAME),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20),
)
times = st.integers(0, 2**53 - 1)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("pin"), names, peers, times, st.none() | times),
        st.tuples(st.just("revoke"), names, peers, times, st.none()),
    ),
    max_size=12,
)


@given(st.sampled_from(TrustPolicy), actions, times)
def test_round_trip_and_rules(
    policy: TrustPolicy,
    steps: list[tuple[str, str, PeerId, int, int | None]],
    now: int,
) -> None:
    store = TrustStore(policy)
    for action, name, peer, time, until in steps:
        if action == "revoke":
            store = store.revoke(peer, time, name)
        elif peer not in store.revoked:
            store = store.pin(name, peer, time, until)
    assert TrustStore.from_bytes(store.to_bytes()) == store
    for name in {*store.pins, "a name without pins"}:
        for peer in (ANN, BEN, CARL, DORA):
            verdict = store.check(peer, name, now).verdict
            if peer in store.revoked:
                assert verdict is TrustVerdict.REFUSE
            elif peer in store.publishers(name, now):
                assert verdict is TrustVerdict.ACCEPT
            elif policy is TrustPolicy.PINNED_ONLY or (
                name in store.pins and store.publishers(name, now)
            ):
                assert verdict is TrustVerdict.REFUSE


@given(st.binary(max_size=200))
def test_garbage_raises_only_bad_trust_file(data: bytes) -> None:
    with pytest.raises(BadTrustFileError):
        TrustStore.from_bytes(data)


@given(st.data())
def test_damage_raises_only_bad_trust_file(data: st.DataObject) -> None:
    encoded = bytearray(VECTORS["text"].encode())
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        TrustStore.from_bytes(bytes(encoded))
    except BadTrustFileError:
        return


# -- files -----------------------------------------------------------------------------------------


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "trust.json"
    with pytest.raises(FileMissingError, match=r"trust\.json"):
        load_trust_store(path)
    for store in (TrustStore(), TrustStore().pin("m", ANN, NOW)):
        save_trust_store(path, store)
        assert load_trust_store(str(path)) == store
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("mode", "bad"), [(0o644, False), (0o620, True), (0o602, True)])
def test_file_that_others_can_change(tmp_path: Path, mode: int, bad: bool) -> None:
    path = tmp_path / "trust.json"
    save_trust_store(path, TrustStore())
    path.chmod(mode)
    if bad:
        with pytest.raises(FilePermissionsError, match="chmod go-w"):
            load_trust_store(path)
    else:
        assert load_trust_store(path) == TrustStore()


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "trust.json"
    path.write_text("{}")
    with pytest.raises(BadTrustFileError, match=r"trust\.json.*move it away"):
        load_trust_store(path)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(SymlinkError):
        load_trust_store(link)
    with pytest.raises(NotAFileError):
        load_trust_store(tmp_path)
    with pytest.raises(NotAFileError):
        save_trust_store(tmp_path, TrustStore())
    with pytest.raises(FileAccessError):
        save_trust_store(tmp_path / "no" / "folder", TrustStore())
    assert sorted(tmp_path.iterdir()) == [link, path]


@pytest.mark.parametrize("member", ['"%s": 1', '"policy": "%s"'])
def test_messages_are_short_whatever_the_file_says(member: str) -> None:
    text = '{"format": "sbp2p-trust/1", "pins": {}, "revoked": {}, ' + member % ("x" * 5000) + "}"
    with pytest.raises(BadTrustFileError) as caught:
        TrustStore.from_bytes(text.encode())
    assert len(str(caught.value)) < 400
