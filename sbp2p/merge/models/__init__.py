"""Methods that merge finished models: fine-tunes of one base, or a few good ones.

Two kinds. Methods on task vectors (what an input is more than the base) add them, thin them out, or
have them vote. Methods on the sphere treat a tensor as a direction with a length. Nothing here
withstands a hostile input: for that there is the robust family. Importing this imports no torch.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

METHODS: Final = MappingProxyType(
    {
        "task-arithmetic": "sbp2p.merge.models.task_arithmetic",
        "model-stock": "sbp2p.merge.models.model_stock",
        "slerp": "sbp2p.merge.models.spherical",
        "multi-slerp": "sbp2p.merge.models.spherical",
        "karcher": "sbp2p.merge.models.spherical",
        "ties": "sbp2p.merge.models.ties",
        "dare": "sbp2p.merge.models.dare",
        "dare-ties": "sbp2p.merge.models.dare",
        "breadcrumbs": "sbp2p.merge.models.breadcrumbs",
    }
)
"""Name of a method to the module that registers it."""
