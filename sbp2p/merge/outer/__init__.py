"""Outer optimisers: what peers agreed on is a gradient, and a step is taken along it.

Each round every peer trains from a common model, the base. The merged model less the base is a
direction; an outer optimiser keeps momentum and the like over rounds and decides how far to go.
FedProx changes what the peers train on instead. Importing this imports no torch.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

METHODS: Final = MappingProxyType(
    {
        "fedprox": "sbp2p.merge.outer.fedprox",
        "fedavgm": "sbp2p.merge.outer.momentum",
        "diloco": "sbp2p.merge.outer.momentum",
        "fedadagrad": "sbp2p.merge.outer.adaptive",
        "fedadam": "sbp2p.merge.outer.adaptive",
        "fedyogi": "sbp2p.merge.outer.adaptive",
    }
)
"""Name of a method to the module that registers it."""
