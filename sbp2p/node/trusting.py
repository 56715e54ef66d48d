"""Whether a version that was asked for may be fetched: the rules on top of the trust store.

Theory of operation: a link by manifest names its content exactly, so there is nothing to ask; its
publisher is pinned for the model's name if nobody is, and refused if somebody else is, since the
name would then lie. A link by publisher and name takes whatever that publisher says is newest: the
first time, the user is asked. A revoked key is refused in every case.

| link | pinned | nobody pinned, first use | somebody else pinned, or revoked |
|---|---|---|---|
| manifest | accept | accept, pin | refuse |
| publisher/name | accept | ask, then pin | refuse |

Error cases: TrustError, with the reason and what to do if it is not wanted.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from sbp2p.errors import TrustError
from sbp2p_keys.trust import TrustVerdict
from sbp2p_protocol.link import ManifestLink

if TYPE_CHECKING:
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
    home: Home, link: Link, manifest: Manifest, ask: TrustCallback | None = None
) -> None:
    """Return if the manifest may be used, pinning its publisher at first use.

    Raises:
        TrustError: it may not.
    """
    now = time.time()  # noqa: TID251  (pins have dates)
    store = home.trust()
    decision = store.check(manifest.publisher, manifest.name, now)
    if decision.verdict is TrustVerdict.REFUSE:
        raise TrustError(
            f"{manifest.name} by {manifest.publisher} is refused: {decision.reason}",
            hint=f"if that is wrong, change the pins in {home.trust_path}",
        )
    if decision.verdict is TrustVerdict.ASK:
        exact = isinstance(link, ManifestLink)
        if not exact and not await (ask or refuse_new)(manifest, decision.reason):
            raise TrustError(
                f"the publisher {manifest.publisher} of {manifest.name} is new here",
                hint="check the peer id with its owner, then say --trust-new",
            )
    if manifest.name not in store.pins:
        home.save_trust(store.pin(manifest.name, manifest.publisher, now))
