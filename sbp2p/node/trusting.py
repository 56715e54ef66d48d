"""Whether a version that was asked for may be fetched: the rules on top of the trust store.

Theory of operation: a link by manifest names its content exactly, so where the trust store would
have the user asked there is nothing to ask; its publisher is pinned for the model's name. It is
refused if somebody else is pinned, since the name would then lie. A link by publisher and name
takes whatever that publisher says is newest: the first time, the user is asked. A revoked key is
refused in every case.

| link | pinned, or policy `any` | nobody pinned, or no longer | somebody else pinned, or revoked |
|---|---|---|---|
| manifest | accept | accept, pin | refuse |
| publisher/name | accept | ask, then pin | refuse |

Only who would have been asked about is pinned: under the policy `any`, a pin would close the name
to everybody else. Asking may take long, so the store is asked again when the pin is written.

Error cases: TrustError, with the reason and the command to use if it is not wanted.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from sbp2p.calls import ThreadCalls
from sbp2p.errors import TrustError
from sbp2p_keys.trust import TrustVerdict
from sbp2p_protocol.link import ManifestLink

if TYPE_CHECKING:
    from sbp2p.calls import Calls
    from sbp2p_keys.identity import PeerId
    from sbp2p_keys.trust import TrustDecision, TrustStore
    from sbp2p_protocol.link import Link
    from sbp2p_protocol.manifest import Manifest

    from .home import Home

TrustCallback: TypeAlias = Callable[["Manifest", str], Awaitable[bool]]
"""Asked with the manifest and the reason when a publisher is new; true pins it for the name."""


async def refuse_new(manifest: Manifest, reason: str) -> bool:
    """Take no new publisher: what a program does that has nobody to ask."""
    return False


async def accept_new(manifest: Manifest, reason: str) -> bool:
    """Take every new publisher and pin it."""
    return True


async def require_trust(
    home: Home,
    link: Link,
    manifest: Manifest,
    ask: TrustCallback | None = None,
    *,
    calls: Calls | None = None,
) -> None:
    """Return if the manifest may be used, pinning its publisher at first use.

    Raises:
        TrustError: it may not.
    """
    publisher, name = manifest.publisher, manifest.name
    decision = home.trust().check(publisher, name, _now())
    store = home.trust()
    decision = store.check(publisher, name, _now())
    if decision.verdict is TrustVerdict.ACCEPT:
        return
    if decision.verdict is TrustVerdict.REFUSE:
        raise _refusal(home, store, publisher, name, decision)
    exact = isinstance(link, ManifestLink)
    if not exact and not await (ask or refuse_new)(manifest, decision.reason):
        pin = home.command("trust", "pin", name, str(publisher))
        raise TrustError(
            f"the publisher {publisher} of {name} is new here: {decision.reason}",
            hint=f"check the peer id with its owner, then say --trust-new, or {pin}",
        )
    # not in the event loop, as another process may be at it
    admit = partial(_admit, home, publisher, name)
    await (calls or ThreadCalls()).run_to_end(home.update_trust, admit)


def _admit(home: Home, publisher: PeerId, name: str, store: TrustStore) -> TrustStore:
    """Return `store` with a pin for the publisher; raises TrustError if it refuses it by now."""
    now = _now()
    decision = store.check(publisher, name, now)
    if decision.verdict is TrustVerdict.REFUSE:
        raise _refusal(home, store, publisher, name, decision)
    return store if decision.verdict is TrustVerdict.ACCEPT else store.pin(name, publisher, now)


def _refusal(
    home: Home, store: TrustStore, publisher: PeerId, name: str, decision: TrustDecision
) -> TrustError:
    if publisher in store.revoked:
        renew = home.command("trust", "pin", name, "NEW-PEER")
        hint = f"nothing by this key is accepted again; if its owner has a new one: {renew}"
    else:
        pin = home.command("trust", "pin", name, str(publisher))
        hint = f"check with the publisher that this peer id is right, then {pin}"
    return TrustError(f"{name} by {publisher} is refused: {decision.reason}", hint=hint)


def _now() -> float:
    return time.time()  # noqa: TID251  (pins have dates)
