"""Every target by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from . import (
    targets_connection,
    targets_data,
    targets_discovery,
    targets_exchange,
    targets_formats,
    targets_kad,
    targets_keys,
    targets_membership,
    targets_merge,
    targets_namespace,
    targets_naming,
    targets_noise,
    targets_tree,
    targets_web,
    targets_wire,
    targets_yamux,
)

if TYPE_CHECKING:
    from .engine import Target

_MODULES: Final = (
    targets_discovery,
    targets_keys,
    targets_membership,
    targets_merge,
    targets_wire,
    targets_noise,
    targets_yamux,
    targets_connection,
    targets_data,
    targets_tree,
    targets_exchange,
    targets_formats,
    targets_web,
    targets_kad,
    targets_naming,
    targets_namespace,
)

TARGETS: Final[dict[str, Target]] = {
    target.name: target for module in _MODULES for target in module.TARGETS
}
