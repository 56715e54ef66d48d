"""Means of a few inputs first, then any method over those means: a robust method made stronger.

* `nearest-neighbour-mixing`: each input becomes the mean of the n - f inputs nearest to it, itself
  included. Allouah et al. 2023 (NNM).
* `bucketing`: the inputs, in an order that nobody could foresee, become means of s of them each.
  Karimireddy et al. 2022.

Theory of operation: honest models that were trained on different data lie far apart, and a method
that picks one of them, or trusts the closest crowd, does them wrong. Means of several honest ones
lie closer together. `of` names the method that follows; it sees a `MixedGroup`. If it is linear, so
is the whole: the coefficients are multiplied out as exact rationals, and the engine rounds once.

The order for buckets comes from the content keys, hashed together, so that it is the same for every
peer. Whoever publishes last can try models until the order suits him; with buckets he gains little
by it, since each bucket that he is in counts once.

Error cases: those of the method that follows, with n buckets in the case of `bucketing`.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from blake3 import blake3

from sbp2p.merge.method import (
    BASE,
    ElementwiseMethod,
    LinearMethod,
    MethodDoc,
    Scope,
    get,
    register,
)
from sbp2p.merge.robust.coordinatewise import MAJORITY
from sbp2p.merge.robust.geometry import in_step, inner_products, squared_distances
from sbp2p.merge.robust.hostile import Hostile, Share, Tolerant, whole_of
from sbp2p.merge.robust.means import mean_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from sbp2p.merge.method import Base, Group, Method, Place
    from sbp2p.merge.robust.geometry import Matrix
    from sbp2p.merge.tensors import TensorSpec

Sets = tuple[tuple[int, ...], ...]
"""The inputs of each mean, ascending."""


@dataclass(frozen=True, slots=True)
class MixedGroup:
    """A group whose inputs are means of another group's inputs, each with the same weight."""

    whole: Group
    sets: Sets

    @property
    def count(self) -> int:
        """Return how many means there are."""
        return len(self.sets)

    @property
    def keys(self) -> tuple[bytes, ...]:
        """Return the key of the first input of each mean."""
        return tuple(self.whole.keys[each[0]] for each in self.sets)

    @property
    def labels(self) -> tuple[str, ...]:
        """Return who is in each mean."""
        return tuple(" + ".join(self.whole.labels[i] for i in each) for each in self.sets)

    @property
    def weights(self) -> tuple[Fraction, ...]:
        """Return equal weights."""
        return (Fraction(1, len(self.sets)),) * len(self.sets)

    @property
    def base(self) -> bool:
        """Return whether there is a base model."""
        return self.whole.base

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """Return what is surveyed."""
        return self.whole.tensors

    def pieces(self, which: int | Base) -> Iterator[tuple[Place, torch.Tensor]]:
        """Stream the values of one mean, or of BASE."""
        if which is BASE:
            yield from self.whole.pieces(BASE)
            return
        inputs = [self.whole.pieces(each) for each in self.sets[which]]
        for pieces in zip(*inputs, strict=True):
            yield pieces[0][0], mean_rows([values for _, values in pieces])

    def in_step(self, *, base: bool) -> Iterator[list[torch.Tensor]]:
        """Stream a piece of each mean, and of the base last if asked for."""
        for rows in in_step(self.whole, base=base):
            yield mix(rows, (*self.sets, (self.whole.count,)) if base else self.sets)

    def gram(self, relative: bool = False) -> Matrix:
        """Return the inner products of the means, as `Group.gram` says."""
        return inner_products(self, centre="base" if relative else "zero")


def mix(rows: Sequence[torch.Tensor], sets: Sets) -> list[torch.Tensor]:
    """Return the mean of each set of rows."""
    return [mean_rows([rows[each] for each in inputs]) for inputs in sets]


class Mixing:
    """How the inputs are mixed before the method that follows sees them."""

    scope: Scope
    doc: MethodDoc
    makes: str
    """What errors of the method that follows call its inputs."""

    def __init__(self, inner: Method, hostile: Hostile) -> None:
        self.inner = inner
        self.hostile = hostile

    def sets(self, group: Group) -> Sets:
        """Return which inputs each mean is of."""
        raise AssertionError("a mixing has sets")

    def expected(self, group: Group) -> int | None:
        """Return how many means may be hostile, or None if the method that follows decides."""
        return self.hostile.count(group.count)

    def mixed(self, group: Group) -> tuple[MixedGroup, Method]:
        """Return the means, and the method that follows, told how many of them may be hostile."""
        means = MixedGroup(group, self.sets(group))
        method = copy(self.inner)
        method.name = f"{method.name} of {self.makes}"
        if isinstance(method, Tolerant):
            f = self.expected(group)
            method.hostile = method.hostile if f is None else Hostile(f=f)
        return means, method


class NearestNeighbours(Mixing):
    """Each input becomes the mean of the n - f nearest to it."""

    scope = Scope.MODEL
    makes = "neighbourhoods"
    doc = MethodDoc(
        paper="Allouah et al. 2023, Fixing by mixing, arXiv:2302.01772 (NNM)",
        assumes="what the method that follows assumes, of honest models that may lie apart",
        breakdown="that of the method that follows",
    )

    def expected(self, group: Group) -> int:
        """Return f; raises MergeError when it is too many."""
        bound = self.inner.bound if isinstance(self.inner, Tolerant) else MAJORITY
        return self.hostile.among(group.count, bound, self.inner.name)

    def sets(self, group: Group) -> Sets:
        """Return the neighbours of each input; raises MergeError when f is too many."""
        f = self.expected(group)
        distances = squared_distances(group)
        return tuple(
            tuple(
                sorted(sorted(range(group.count), key=lambda j: (row[j], j != i, j))[: -f or None])
            )
            for i, row in enumerate(distances)
        )


class Buckets(Mixing):
    """Inputs become means of `size` of them each, in an order that hangs on all of them."""

    scope = Scope.NONE
    makes = "buckets"
    doc = MethodDoc(
        paper="Karimireddy et al. 2022, Byzantine-robust learning on heterogeneous datasets via "
        "bucketing, arXiv:2006.09365",
        assumes="what the method that follows assumes, of honest models that may lie apart",
        breakdown="that of the method that follows, of n/s buckets; each hostile input spoils one",
    )

    def __init__(self, inner: Method, hostile: Hostile, size: int) -> None:
        super().__init__(inner, hostile)
        self._size = size

    def sets(self, group: Group) -> Sets:
        """Return the buckets, in canonical order; the last ones are smaller if need be."""
        salt = blake3(b"".join(group.keys)).digest()
        shuffled = sorted(
            range(group.count), key=lambda i: (blake3(salt + group.keys[i]).digest(), i)
        )
        buckets = -(-group.count // self._size)
        return tuple(sorted(tuple(sorted(shuffled[each::buckets])) for each in range(buckets)))


class MixedLinear(LinearMethod):
    """A mixing, then a linear method."""

    def __init__(self, name: str, mixing: Mixing) -> None:
        self.name = name
        self.doc = mixing.doc
        self.scope = max(mixing.scope, mixing.inner.scope, key=list(Scope).index)
        self.needs_base = mixing.inner.needs_base
        self._mixing = mixing

    def coefficients(self, group: Group) -> Sequence[Fraction | float]:
        """Return the coefficients of the inputs, multiplied out; what the method raises, passes."""
        means, method = self._mixing.mixed(group)
        if not isinstance(method, LinearMethod):
            raise TypeError(f"{method.name} is not linear")
        found = [Fraction(each) for each in method.coefficients(means)]
        result = [Fraction()] * group.count
        for inputs, coefficient in zip(means.sets, found, strict=False):
            for each in inputs:
                result[each] += coefficient / len(inputs)
        return [*result, *found[means.count :]]


class MixedElementwise(ElementwiseMethod):
    """A mixing, then a method that looks at each coordinate."""

    def __init__(self, name: str, mixing: Mixing) -> None:
        self.name = name
        self.doc = mixing.doc
        self.scope = max(mixing.scope, mixing.inner.scope, key=list(Scope).index)
        self.needs_base = mixing.inner.needs_base
        self._mixing = mixing

    def survey(self, group: Group) -> object:
        """Return the sets, the method that follows, and what it surveyed of the means."""
        means, method = self._mixing.mixed(group)
        if not isinstance(method, ElementwiseMethod):
            raise TypeError(f"{method.name} does not look at each coordinate")
        return _Survey(means.sets, method, method.survey(means))

    def combine(
        self,
        values: torch.Tensor,
        base: torch.Tensor | None,
        weights: torch.Tensor,
        survey: object,
        place: Place,
    ) -> torch.Tensor:
        """Return what the method that follows makes of the means."""
        if not isinstance(survey, _Survey):
            raise TypeError(f"{self.name} surveys sets, and got {survey!r}")
        means = values.new_empty((len(survey.sets), values.shape[1]))
        for row, mean in zip(means, mix(values.unbind(0), survey.sets), strict=True):
            row.copy_(mean)
        equal = weights.new_full((len(survey.sets),), 1 / len(survey.sets))
        return survey.method.combine(means, base, equal, survey.found, place)


@dataclass(frozen=True, slots=True)
class _Survey:
    sets: Sets
    method: ElementwiseMethod
    found: object


def _method(name: str, mixing: Mixing) -> Method:
    if isinstance(mixing.inner, LinearMethod):
        return MixedLinear(name, mixing)
    return MixedElementwise(name, mixing)


def nearest_neighbour_mixing(
    of: str = "trimmed-mean",
    f: int | str | None = None,
    share: Share | None = None,
    **options: object,
) -> Method:
    """Mix each input with its nearest neighbours, then merge by another method.

    Args:
        of: the method that follows.
        f: how many inputs may be hostile; as many as the method that follows bears if neither is
            given.
        share: instead, which share of the inputs, rounded down.
        options: of the method that follows; it is told `f` by itself.

    Raises:
        MergeError: no such method or option.
    """
    mixing = NearestNeighbours(get(of, **options), Hostile.parse(f, share))
    return _method("nearest-neighbour-mixing", mixing)


def bucketing(
    of: str = "median",
    f: int | str | None = None,
    share: Share | None = None,
    s: int | str = 2,
    **options: object,
) -> Method:
    """Put the inputs into buckets, then merge the buckets' means by another method.

    Args:
        of: the method that follows.
        f: how many inputs may be hostile; as many as the method that follows bears if neither is
            given.
        share: instead, which share of the inputs, rounded down.
        s: inputs in a bucket; below n/(2f), f hostile inputs leave a majority of good buckets.
        options: of the method that follows; it is told `f` by itself.

    Raises:
        MergeError: no such method or option.
    """
    mixing = Buckets(get(of, **options), Hostile.parse(f, share), whole_of(s, "s", 1))
    return _method("bucketing", mixing)


register(nearest_neighbour_mixing, "nearest-neighbour-mixing")
register(bucketing, "bucketing")
