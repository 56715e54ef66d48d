"""Which plugin wraps a model: found by the class of the model, without importing any framework.

Theory of operation: the classes of a model are gone through from the most specific to the most
general (its method resolution order), each known by its full name, such as
`torch.nn.modules.module.Module`. The first one that has a plugin decides. For one class that is, in
this order: what the program registered, what is built in, and an entry point of the group
"sbp2p.plugins" whose name is the class's full name. So an installed package adds plugins for its
own classes, and for subclasses of others', and cannot take over what is built in. A model whose
class has none and which has the two methods of a plugin is one itself.

A factory is called as `factory(model, **options)` and returns a plugin.

Error cases: a model that nothing wraps is a MergeError with its class's full name; a class that
two installed packages want is a ConfigError that names both. What a factory raises passes through.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Final, cast

from sbp2p.errors import ConfigError, MergeError

from .plugin import Plugin

if TYPE_CHECKING:
    from collections.abc import Callable

    Factory = Callable[..., Plugin]

ENTRY_POINTS: Final = "sbp2p.plugins"
"""The entry point group of third parties: the full name of a class to a factory."""

_BUILT_IN: Final = {
    "torch.nn.modules.module.Module": "sbp2p.plugins.torch_module:TorchModule",
    "sklearn.base.BaseEstimator": "sbp2p.plugins.sklearn_estimator:SklearnEstimator",
    "builtins.dict": "sbp2p.plugins.dicts:wrap_dict",
}

_registered: dict[str, Factory] = {}


def wrap(model: object, **options: Any) -> Plugin:
    """Return a plugin for a model; a plugin is returned as it is.

    Args:
        model: a `torch.nn.Module`, a dict of tensors or of NumPy arrays, a scikit-learn estimator,
            a plugin, or anything that a registered or installed plugin is for.
        options: for the plugin: `optimizer=`, `only=`, `exclude=` and the like.

    Raises:
        MergeError: nothing wraps this, or something in it cannot be shared.
        ConfigError: two installed packages want to wrap this.
        TypeError: an option that the plugin does not have.
    """
    for kind in type(model).__mro__:
        if (factory := _factory(full_name(kind))) is not None:
            return factory(model, **options)
    if isinstance(model, Plugin):
        if options:
            raise TypeError(f"a plugin takes no options here: {', '.join(options)}")
        return model
    raise MergeError(
        f"no plugin wraps a {full_name(type(model))}",
        hint="give a torch module, a dict of tensors, NumPy arrays or a scikit-learn estimator, "
        "or register a plugin for this class (docs/plugins.md)",
    )


def register(kind: type | str, factory: Factory) -> None:
    """Wrap models of this class, and of its subclasses, by `factory(model, **options)`.

    Args:
        kind: the class, or its full name, so that it need not be imported.
        factory: a plugin's class, or a function; it replaces the one that was there.
    """
    _registered[kind if isinstance(kind, str) else full_name(kind)] = factory


def full_name(kind: type) -> str:
    """Return what a class is known by here: the module that defines it, and its name therein."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _factory(name: str) -> Factory | None:
    if (factory := _registered.get(name)) is not None:
        return factory
    if (place := _BUILT_IN.get(name)) is not None:
        module, _, attribute = place.partition(":")
        return cast("Factory", getattr(import_module(module), attribute))
    found = _installed(tuple(sys.path)).get(name, ())
    if len({entry.value for entry in found}) > 1:
        claims = ", ".join(sorted(_origin(entry.dist, entry.value) for entry in found))
        raise ConfigError(
            f"two installed packages want to wrap {name}: {claims}",
            hint="uninstall one of them, or say which: sbp2p.plugins.register(...)",
        )
    return cast("Factory", found[0].load()) if found else None


@lru_cache(maxsize=1)
def _installed(path: tuple[str, ...]) -> dict[str, tuple[EntryPoint, ...]]:
    """Return the entry points of installed packages; read once for each `sys.path`, in ~20 ms."""
    found: defaultdict[str, list[EntryPoint]] = defaultdict(list)
    for entry in entry_points(group=ENTRY_POINTS):
        found[entry.name].append(entry)
    return {name: tuple(entries) for name, entries in found.items()}


def _origin(distribution: Any, value: str) -> str:
    return value if distribution is None else f"{distribution.name} ({value})"
