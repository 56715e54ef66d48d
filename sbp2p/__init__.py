"""sbp2p: peer-to-peer sharing of content-addressed model weights.

The names below are loaded when they are first used, so that `import sbp2p` costs nothing that is
not needed: no trio for a program that only loads tensors, and never torch by itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sbp2p.checkpoint.load import load_tensors
    from sbp2p.config import LimitsConfig, NodeConfig
    from sbp2p.errors import (
        CheckpointError,
        ConfigError,
        MergeError,
        NotFoundError,
        PeerMisbehavedError,
        PeerUnreachableError,
        Sbp2pError,
        StoreBusyError,
        StoreError,
        TrustError,
    )
    from sbp2p.naming import Evidence, Following, ResolvedName
    from sbp2p.node import (
        Damage,
        Description,
        FetchResult,
        Node,
        Progress,
        PublishResult,
        Version,
        accept_new,
        refuse_new,
    )
    from sbp2p.plugins import wrap
    from sbp2p.roles import Role, Rules
    from sbp2p.swarm import Gate
    from sbp2p.training import background
    from sbp2p_protocol.link import parse_link

__version__ = "0.1.0"

_HOMES: Final = {
    "sbp2p.checkpoint.load": ("load_tensors",),
    "sbp2p.config": ("LimitsConfig", "NodeConfig"),
    "sbp2p.errors": (
        "CheckpointError",
        "ConfigError",
        "MergeError",
        "NotFoundError",
        "PeerMisbehavedError",
        "PeerUnreachableError",
        "Sbp2pError",
        "StoreBusyError",
        "StoreError",
        "TrustError",
    ),
    "sbp2p.node": (
        "Damage",
        "Description",
        "FetchResult",
        "Node",
        "Progress",
        "PublishResult",
        "Version",
        "accept_new",
        "refuse_new",
    ),
    "sbp2p.naming": ("Evidence", "Following", "ResolvedName"),
    "sbp2p.plugins": ("wrap",),
    "sbp2p.roles": ("Role", "Rules"),
    "sbp2p.swarm": ("Gate",),
    "sbp2p.training": ("background",),
    "sbp2p_protocol.link": ("parse_link",),
}
_MODULE_OF: Final = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "CheckpointError",
    "ConfigError",
    "Damage",
    "Description",
    "Evidence",
    "FetchResult",
    "Following",
    "Gate",
    "LimitsConfig",
    "MergeError",
    "Node",
    "NodeConfig",
    "NotFoundError",
    "PeerMisbehavedError",
    "PeerUnreachableError",
    "Progress",
    "PublishResult",
    "ResolvedName",
    "Role",
    "Rules",
    "Sbp2pError",
    "StoreBusyError",
    "StoreError",
    "TrustError",
    "Version",
    "accept_new",
    "background",
    "load_tensors",
    "parse_link",
    "refuse_new",
    "wrap",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'sbp2p' has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
