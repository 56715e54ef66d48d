"""Which tensors the result has, and what becomes of each: decided from names, shapes and dtypes.

| names | the result has | when inputs differ |
|---|---|---|
| strict | what every input has | an error that names each difference |
| intersection | what all inputs have alike | the rest is dropped, and the report says so |
| keep-local | what the local model has | what not all inputs have alike is the local model's own |

A base model counts as an input here, of floating tensors: one that it lacks cannot be merged. Two
tensors are alike when they have one shape and one dtype; with a `dtype` policy floating ones of any
dtype are. Tensors that are tied in every input that knows of ties are merged once, and written
under each of their names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sbp2p.checkpoint.formats.layout import shown
from sbp2p.errors import MergeError
from sbp2p.merge.dtypes import FLOATS, Kind, kind_of
from sbp2p.merge.policies import Policy
from sbp2p.merge.tensors import TiedSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sbp2p.merge.method import Names
    from sbp2p.merge.policies import Policies
    from sbp2p.merge.tensors import Source, TensorSpec

_SHOWN_MAX: Final = 8
"""Differences that an error lists; of the others it says how many there are."""


@dataclass(frozen=True, slots=True)
class Item:
    """A tensor of the result, and its twins: further names that the same tensor has."""

    spec: TensorSpec
    policy: Policy
    kind: Kind
    twins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Every tensor of the result, twins left out, in the order in which the inputs are read."""

    items: tuple[Item, ...]
    dropped: tuple[str, ...]
    """Names that some input has and the result has not."""
    kept: tuple[str, ...]
    """Names that are the local model's own because the inputs differ."""

    def specs(self) -> dict[str, TensorSpec]:
        """Return every tensor of the result by name."""
        found: dict[str, TensorSpec] = {}
        for item in self.items:
            for name in (item.spec.name, *item.twins):
                found[name] = replace(item.spec, name=name)
        return found


@dataclass(frozen=True, slots=True)
class Model:
    """A source and who it is, for messages."""

    label: str
    source: Source
    is_base: bool = False


def make_plan(
    inputs: Sequence[Model],
    base: Source | None,
    local: Source | None,
    policies: Policies,
    names: Names,
) -> Plan:
    """Decide what the result has; raises MergeError."""
    if names not in ("strict", "intersection", "keep-local"):
        raise ValueError(f"names is {names!r}")
    if names == "keep-local" and local is None:
        raise MergeError("to keep local tensors there must be a local model", hint="give `local`")
    models = [*inputs]
    if base is not None:
        models.append(Model("the base model", base, is_base=True))
    specs = [model.source.specs() for model in models]
    alike, differing = _compare(models, specs, policies)
    own = {} if local is None else local.specs()
    order = own if names == "keep-local" else specs[0]
    if names == "strict" and differing:
        raise _mismatch(differing)
    everything = {name: spec for each in reversed(specs) for name, spec in each.items()}
    twins = _twins([model.source for model in models])
    if names == "keep-local":
        twins = {leader: each for leader, each in twins.items() if {leader, *each} <= own.keys()}
    seconds = {twin for group in twins.values() for twin in group}
    items, kept = [], []
    for name in order:
        if name in seconds:
            continue
        if name in alike and (names != "keep-local" or _alike(own[name], alike[name], policies)):
            items.append(_item(alike[name], policies, twins.get(name, ()), own))
        elif names == "keep-local":
            items.append(Item(own[name], Policy.LOCAL, kind_of(own[name].dtype)))
            kept.append(name)
    known = {name for item in items for name in (item.spec.name, *item.twins)}
    return Plan(tuple(items), tuple(name for name in everything if name not in known), tuple(kept))


def _item(
    spec: TensorSpec, policies: Policies, twins: tuple[str, ...], own: Mapping[str, TensorSpec]
) -> Item:
    policy, kind = policies.policy_of(spec), kind_of(spec.dtype)
    if policy is Policy.LOCAL:
        if spec.name not in own:
            raise MergeError(f"tensor {shown(spec.name)} is to be the local one, and there is none")
        return Item(own[spec.name], policy, kind, twins)
    if policies.dtype is not None and spec.dtype in FLOATS and policy is not Policy.EQUAL:
        spec = replace(spec, dtype=policies.dtype)
    return Item(spec, policy, kind, twins)


def _compare(
    models: Sequence[Model], specs: Sequence[Mapping[str, TensorSpec]], policies: Policies
) -> tuple[dict[str, TensorSpec], list[str]]:
    """Return what all models have alike, and a line for each difference."""
    alike: dict[str, TensorSpec] = {}
    differing: list[str] = []
    names = {name: spec for each in reversed(specs) for name, spec in each.items()}
    for name in sorted(names):
        found = list(_differences(name, models, specs, policies))
        differing += found
        if not found:
            alike[name] = specs[0][name]
    return alike, differing


def _differences(
    name: str,
    models: Sequence[Model],
    specs: Sequence[Mapping[str, TensorSpec]],
    policies: Policies,
) -> Iterator[str]:
    first, whose = next(
        (each[name], model.label) for model, each in zip(models, specs, strict=True) if name in each
    )
    for model, each in zip(models, specs, strict=True):
        if model.is_base and kind_of(first.dtype) is not Kind.FLOATING:
            continue  # methods see floating tensors only
        if (spec := each.get(name)) is None:
            yield f"{model.label} lacks {shown(name)}"
        elif not _alike(first, spec, policies):
            yield (
                f"{shown(name)} is {spec.dtype} {list(spec.shape)} in {model.label}, "
                f"{first.dtype} {list(first.shape)} in {whose}"
            )


def _alike(one: TensorSpec, other: TensorSpec, policies: Policies) -> bool:
    if one.shape != other.shape:
        return False
    if one.dtype == other.dtype:
        return True
    if policies.dtype is None or one.dtype not in FLOATS or other.dtype not in FLOATS:
        return False
    return policies.policy_of(one) is not Policy.EQUAL


def _mismatch(differing: Sequence[str]) -> MergeError:
    lines = [*differing[:_SHOWN_MAX]]
    if (more := len(differing) - len(lines)) > 0:
        lines.append(f"and {more} more")
    return MergeError(
        "the models do not have the same tensors: " + "; ".join(lines),
        hint="merge only what they have in common: names='intersection' or 'keep-local'",
    )


def _twins(sources: Sequence[Source]) -> dict[str, tuple[str, ...]]:
    """Return, by the first name, the further names of tensors that are tied in all sources."""
    known = [source.ties() for source in sources if isinstance(source, TiedSource)]
    if len(known) != len(sources):
        return {}
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in sorted({name for each in known for name in each}):
        leaders = tuple(each.get(name, name) for each in known)
        if len(set(leaders)) == 1 and leaders[0] != name:
            groups.setdefault(leaders, []).append(name)
    return {leaders[0]: tuple(found) for leaders, found in groups.items()}
