"""What the options about finding peers say, as text: `--bootstrap`, `--network` and others."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sbp2p.config import DhtConfig, DiscoveryConfig

BOOTSTRAP_VARIABLE: Final = "SBP2P_BOOTSTRAP"
NO_LAN_VARIABLE: Final = "SBP2P_NO_LAN"

SEED_CONNECTIONS: Final = 8
"""Peers that a seed stays connected to, so that it never begins from nobody."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The options of one command.

    Attributes:
        bootstrap: Addresses; those of $SBP2P_BOOTSTRAP are added.
        no_lan: Whether multicast is off; so it is while $SBP2P_NO_LAN is not empty.
        network: The DHT to take part in; None is sbp2p's own.
        announce: What it is told of; None is versions.
    """

    bootstrap: tuple[str, ...] = ()
    no_lan: bool = False
    network: str | None = None
    announce: str | None = None

    def discovery(self, *, stays: bool) -> DiscoveryConfig:
        """Return how peers are found.

        Args:
            stays: whether the command runs until it is stopped, and so keeps some connections.

        Raises:
            ConfigError: a bootstrap address cannot be one, or that cannot be told.
        """
        from sbp2p.config import DiscoveryConfig
        from sbp2p.discovery import parse_bootstrap
        from sbp2p.errors import ConfigError

        if self.announce not in (None, "versions", "blocks"):
            raise ConfigError(
                f"--announce {self.announce!r} is nothing that can be told",
                hint="say versions or blocks",
            )

        texts = [*self.bootstrap, *os.environ.get(BOOTSTRAP_VARIABLE, "").split()]
        parse_bootstrap(texts)  # before a node is opened
        return DiscoveryConfig(
            bootstrap=tuple(texts),
            lan=not self.no_lan and not os.environ.get(NO_LAN_VARIABLE),
            announce="blocks" if self.announce == "blocks" else "versions",
            wanted_connections=SEED_CONNECTIONS if stays else 0,
        )

    def dht(self) -> DhtConfig:
        """Return which DHT is taken part in; raises ConfigError."""
        from sbp2p.config import DhtConfig
        from sbp2p.errors import ConfigError

        if self.network is None:
            return DhtConfig()
        if not self.network.startswith("/") or not self.network.isprintable():
            raise ConfigError(
                f"--network {self.network!r} is no name of a network",
                hint="a name begins with a slash, as /sbp2p and /ipfs do",
            )
        return DhtConfig(network=self.network)
