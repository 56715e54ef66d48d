"""The rules on top of the trust store, and the file under them."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import trio

from sbp2p.errors import TrustError
from sbp2p.node import accept_new, refuse_new
from sbp2p.node.home import Home
from sbp2p.node.trusting import require_trust
from sbp2p.store.locks import FileLock
from sbp2p_keys.identity import PrivateKey
from sbp2p_keys.trust import ANY_NAME, TrustPolicy, TrustStore
from sbp2p_protocol.cid import DAG_CBOR, DAG_PB, Cid
from sbp2p_protocol.link import ManifestLink, NameLink
from sbp2p_protocol.manifest import Manifest

if TYPE_CHECKING:
    from pathlib import Path

    from sbp2p_protocol.link import Link

ANN, BEN, CARL = (PrivateKey.from_seed(bytes([n]) * 32).peer_id for n in range(1, 4))
EXACT: Link = ManifestLink(Cid.for_block(DAG_CBOR, b"manifest"), ())
NAMED: Link = NameLink(ANN, "org/m", None, ())
PAST, LATER = 1_000.0, 4_000_000_000.0


def manifest(publisher: object = ANN, name: str = "org/m") -> Manifest:
    assert isinstance(publisher, type(ANN))
    return Manifest(
        name=name,
        version=1,
        root=Cid.for_block(DAG_PB, b"root"),
        tensors=None,
        parents=(),
        publisher=publisher,
        created=0,
        meta={},
    )


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


class Asker:
    """Says yes, and counts how often it was asked."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    async def __call__(self, manifest: Manifest, reason: str) -> bool:
        self.reasons.append(reason)
        return True


# -- when somebody is pinned -----------------------------------------------------------------------


@pytest.mark.parametrize("link", [EXACT, NAMED], ids=["exact", "named"])
async def test_first_use_is_pinned(home: Home, link: Link) -> None:
    asker = Asker()
    for _ in range(3):
        await require_trust(home, link, manifest(), asker)
    assert len(asker.reasons) == (0 if link is EXACT else 1)
    assert home.trust().publishers("org/m", LATER) == {ANN}


@pytest.mark.parametrize("link", [EXACT, NAMED], ids=["exact", "named"])
async def test_whoever_is_accepted_after_every_pin_lapsed_is_pinned(home: Home, link: Link) -> None:
    home.update_trust(lambda store: store.pin("org/m", BEN, PAST, until=PAST + 1))
    asker = Asker()
    for _ in range(3):
        await require_trust(home, link, manifest(), asker)
    assert len(asker.reasons) == (0 if link is EXACT else 1), "and not asked about every time"
    assert home.trust().publishers("org/m", LATER) == {ANN}


async def test_whoever_is_accepted_after_every_pin_was_revoked_is_pinned(home: Home) -> None:
    home.update_trust(lambda store: store.pin("org/m", BEN, PAST).revoke(BEN, PAST))
    asker = Asker()
    for _ in range(3):
        await require_trust(home, NAMED, manifest(), asker)
    assert len(asker.reasons) == 1
    assert "lapsed or revoked" in asker.reasons[0]


async def test_nobody_is_pinned_where_nobody_would_be_asked(home: Home) -> None:
    home.update_trust(lambda store: replace(store, policy=TrustPolicy.ANY))
    for publisher in (ANN, BEN):
        await require_trust(home, EXACT, manifest(publisher), refuse_new)
    home.update_trust(lambda _: TrustStore().pin(ANY_NAME, ANN, PAST).pin(ANY_NAME, BEN, PAST))
    for publisher in (ANN, BEN):
        await require_trust(home, NAMED, manifest(publisher), refuse_new)
    assert set(home.trust().pins) == {ANY_NAME}


async def test_what_happened_while_the_user_was_asked_counts(home: Home) -> None:
    async def revoked_meanwhile(manifest: Manifest, reason: str) -> bool:
        home.update_trust(lambda store: store.revoke(ANN, PAST, "stolen"))
        return True

    async def taken_meanwhile(manifest: Manifest, reason: str) -> bool:
        home.update_trust(lambda store: store.pin("org/m", BEN, PAST))
        return True

    with pytest.raises(TrustError, match="stolen"):
        await require_trust(home, NAMED, manifest(), revoked_meanwhile)
    home.update_trust(lambda _: TrustStore())
    with pytest.raises(TrustError, match="is pinned to"):
        await require_trust(home, NAMED, manifest(), taken_meanwhile)
    assert home.trust().publishers("org/m", LATER) == {BEN}


# -- the hint --------------------------------------------------------------------------------------


async def refusal(home: Home, link: Link = NAMED, name: str = "org/m") -> TrustError:
    with pytest.raises(TrustError) as caught:
        await require_trust(home, link, manifest(name=name), refuse_new)
    return caught.value


async def test_a_refusal_names_the_command_that_changes_it(home: Home) -> None:
    at = f"--home {home.path}`"
    pin = f"`sbp2p trust pin org/m {ANN} {at}"
    assert pin in (await refusal(home)).hint
    home.update_trust(lambda store: replace(store, policy=TrustPolicy.PINNED_ONLY))
    assert pin in (await refusal(home, EXACT)).hint
    home.update_trust(lambda store: store.pin("org/m", BEN, PAST))
    assert pin in (await refusal(home, EXACT)).hint
    home.update_trust(lambda store: store.revoke(ANN, PAST))
    assert f"`sbp2p trust pin org/m NEW-PEER {at}" in (await refusal(home, EXACT)).hint
    home.update_trust(lambda _: TrustStore())
    assert f"`sbp2p trust pin 'my model' {ANN} {at}" in (await refusal(home, name="my model")).hint


async def test_the_command_does_what_the_hint_says(home: Home) -> None:
    home.update_trust(lambda store: store.pin("org/m", BEN, PAST))
    await refusal(home)
    home.update_trust(lambda store: store.pin("org/m", ANN, PAST))
    await require_trust(home, NAMED, manifest(), refuse_new)


def test_the_home_of_every_day_needs_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBP2P_HOME", "/some/where")
    assert Home().command("trust") == "`sbp2p trust`"
    assert Home("/else where").command("trust") == "`sbp2p trust --home '/else where'`"


# -- the file --------------------------------------------------------------------------------------


def test_pins_made_at_the_same_time_all_stay(home: Home) -> None:
    start = threading.Barrier(4)

    def work(worker: int) -> None:
        mine = Home(home.path)
        start.wait()
        for n in range(10):
            name = f"m{worker}-{n}"
            mine.update_trust(lambda store, name=name: store.pin(name, ANN, PAST))  # type: ignore[misc]

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(home.trust().pins) == 40


async def test_a_fetch_waits_for_who_changes_the_store_and_goes_on_meanwhile(home: Home) -> None:
    home.create()
    lock = FileLock(home.path / "trust.lock", "the trust store")
    lock.acquire()
    ticks = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(require_trust, home, NAMED, manifest(), accept_new)
        for _ in range(100):
            await trio.lowlevel.checkpoint()
            ticks += 1
        assert home.trust() == TrustStore()
        lock.release()
    assert ticks == 100
    assert home.trust().publishers("org/m", LATER) == {ANN}


def test_a_change_that_fails_changes_nothing(home: Home) -> None:
    before = home.update_trust(lambda store: store.revoke(ANN, PAST))

    def broken(store: TrustStore) -> TrustStore:
        raise KeyError

    with pytest.raises(KeyError):
        home.update_trust(broken)
    with pytest.raises(TrustError, match="pin a new key"):
        home.update_trust(lambda store: store.pin("m", ANN, PAST))
    with pytest.raises(TrustError, match="control characters"):
        home.update_trust(lambda store: store.pin("a\nb", BEN, PAST))
    assert home.trust() == before
    home.update_trust(lambda store: store.pin("m", BEN, PAST))  # the lock was given back


def test_a_store_that_does_not_change_is_not_written(home: Home) -> None:
    home.update_trust(lambda store: store)
    assert not home.trust_path.exists()
