"""Which web seeds a fetch has: the user's and the manifest's. Without the extra `web`, none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbp2p import observe
from sbp2p.errors import ConfigError
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.web_seeds import parse_web_seed, web_seeds_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sbp2p.config import WebConfig
    from sbp2p.limits import Limits
    from sbp2p_protocol.blocktable import BlockTable
    from sbp2p_protocol.web_seeds import WebUrl

    from .web_seed import WebSeeds

_INSTALL = "pip install 'sbp2p[web]'"


def read_web_seeds(texts: Iterable[str]) -> tuple[WebUrl, ...]:
    """Read the URLs that a user gave.

    Raises:
        ConfigError: one is not the URL of a web seed, or HTTP is not installed.
    """
    urls: dict[WebUrl, None] = {}
    for text in texts:
        try:
            urls[parse_web_seed(text)] = None
        except RemoteProtocolError as error:
            raise ConfigError(
                f"web seed {text!r}: {error}",
                hint="give the URL of the folder with the files: https://HOST/PATH/",
            ) from error
    if urls:
        try:
            import h11  # noqa: F401
        except ImportError as error:
            raise ConfigError("web seeds need h11, which is not here", hint=_INSTALL) from error
    return tuple(urls)


def make_web_seeds(
    given: Iterable[WebUrl],
    meta: Mapping[str, object],
    *,
    table: BlockTable,
    config: WebConfig,
    limits: Limits,
) -> WebSeeds | None:
    """Return the web seeds of a fetch, the user's first; None if there are none to be asked."""
    mine = dict.fromkeys(given)
    others = [url for url in web_seeds_of(meta) if url not in mine]
    if config.use == "never" or not (mine or others):
        return None
    try:
        from .web_seed import WebSeed, WebSeeds
    except ImportError:
        for url in others:
            observe.report_web_seed_dropped(url.text, f"h11 is not installed: {_INSTALL}")
        return None
    seeds = [WebSeed(url, private=True) for url in mine]
    seeds += [WebSeed(url, private=False) for url in others]
    return WebSeeds(seeds, table=table, config=config, limits=limits)
