"""What a merge method is, what it sees of the inputs, and how it is found by its name.

Theory of operation: a method never touches files, threads or dtypes. It sees the inputs as a
`Group`, in an order that depends on nothing but their content, and either

* names coefficients (`LinearMethod`): the engine computes the sum of coefficient times input
  exactly and rounds it once, so the result is the correctly rounded value; or
* combines values (`ElementwiseMethod`): the engine gives it float64 columns, one row per input, and
  rounds what it returns once. It must treat each column alike and alone.

What a method wants to know of the whole (distances, thresholds) it surveys first, over nothing, one
tensor, or the whole model: its `scope`. A group streams, so a survey needs no more memory than the
method itself keeps. Only floating tensors come here; integers and the rest follow a policy.

Every peer must get the same bits. So a method uses only what is the same on every machine: torch's
elementwise add, sub, mul, div, sqrt, abs, comparisons, where, sort, and the sums of `sums`; never
torch.sum, norm, dot, matmul, mean, exp, log or pow on tensors (math.* on single floats is as good
as the C library: avoid it where a result hangs on its last bit).

Methods are found by name: built-in ones in the module that their family's table `METHODS` names,
others that a program registered, then the entry points of group "sbp2p.merge_methods". torch is
imported by the modules that compute, not here.

Error cases: an unknown name or option is a MergeError that says what there is. What a third
party's method raises, passes through.
"""

from __future__ import annotations

import importlib
import inspect
from abc import ABC, abstractmethod
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeVar

from sbp2p.errors import MergeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from fractions import Fraction

    import torch

    from sbp2p.merge.tensors import TensorSpec

ENTRY_POINTS: Final = "sbp2p.merge_methods"
"""The entry point group of third parties; an entry loads to a factory: a class or a function."""

FAMILIES: Final = (
    "sbp2p.merge.linear",
    "sbp2p.merge.robust",
    "sbp2p.merge.models",
    "sbp2p.merge.outer",
)
"""Modules or packages with a table `METHODS`: name of a method to the module that registers it."""

CHUNK: Final = 32_768
"""Elements of a piece at most. torch runs an operation on so few elements on the calling thread
only, so that no result depends on how many threads torch has."""


class Base(Enum):
    """Asks a group for the base model instead of an input."""

    BASE = "base"


BASE: Final = Base.BASE


class Scope(Enum):
    """Over what a method surveys the inputs before it combines them."""

    NONE = "none"
    TENSOR = "tensor"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class MethodDoc:
    """What a user should know before using a method."""

    paper: str
    """Authors, title, year, identifier; or what it is when there is none."""
    assumes: str
    """What must hold for the result to mean something."""
    breakdown: str
    """The largest share of inputs that may be arbitrary while the result stays bounded."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which elements of which tensor: `start` up to, not including, `stop`."""

    tensor: TensorSpec
    start: int
    stop: int


class Group(Protocol):
    """The inputs as a method sees them, in canonical order: by key, whatever order was given.

    In a survey of Scope.NONE there are no tensors; `pieces` and `gram` then see nothing.
    """

    @property
    def count(self) -> int:
        """Return how many inputs there are, without the base."""

    @property
    def keys(self) -> tuple[bytes, ...]:
        """Return the content key of each input, ascending."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Return who each input is, for messages."""

    @property
    def weights(self) -> tuple[Fraction, ...]:
        """Return the weight of each input; their sum is 1."""

    @property
    def base(self) -> bool:
        """Return whether there is a base model."""

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """Return what is surveyed: one tensor (TENSOR), all floating ones by name (MODEL)."""

    def pieces(self, which: int | Base) -> Iterator[tuple[Place, torch.Tensor]]:
        """Stream the values of one input, or of BASE, through all `tensors`.

        Each piece is float64, of shape (elements,), at most CHUNK elements, the method's to change.
        The pieces of different inputs come in step, so iterators may be zipped.
        """

    def gram(self, relative: bool = False) -> list[list[float]]:
        """Return the inner products <x_i - r, x_j - r> over all `tensors`, symmetric.

        r is the base if `relative`, else 0. Not relative and with a base, the base is the last row
        and column. The same bits for any thread count: sums of pieces, added by math.fsum.
        """


class LinearMethod(ABC):
    """The result is the sum of c_i x_i, plus c_base times the base: exact, rounded once."""

    name: str
    doc: MethodDoc
    scope: Scope = Scope.NONE
    needs_base: bool = False
    inputs_min: int = 1

    def merging(self) -> AbstractContextManager[None]:
        """Enclose one merge: entered before the first survey, left when the sink has finished.

        For methods that remember something from one merge to the next; a merge that fails leaves
        it by its exception. A method that does so takes part in one merge at a time.
        """
        return nullcontext()

    @abstractmethod
    def coefficients(self, group: Group) -> Sequence[Fraction | float]:
        """Return finite coefficients: one per input, in order, then the base's if it has one.

        Called once per survey: for each tensor with Scope.TENSOR, else once. Deterministic.
        """


class ElementwiseMethod(ABC):
    """The result of each element depends on that element of the inputs, and on the survey."""

    name: str
    doc: MethodDoc
    scope: Scope = Scope.NONE
    needs_base: bool = False
    inputs_min: int = 1
    by_rows: bool = False
    """Whether `combine` computes with single rows only, and so is given CHUNK columns at a time:
    fewer and longer operations. Else a chunk has CHUNK numbers in all its rows together."""

    def merging(self) -> AbstractContextManager[None]:
        """Enclose one merge: entered before the first survey, left when the sink has finished.

        For methods that remember something from one merge to the next; a merge that fails leaves
        it by its exception. A method that does so takes part in one merge at a time.
        """
        return nullcontext()

    def survey(self, group: Group) -> object:
        """Return what `combine` must know of the whole: thresholds, a choice. Deterministic."""
        return None

    @abstractmethod
    def combine(
        self,
        values: torch.Tensor,
        base: torch.Tensor | None,
        weights: torch.Tensor,
        survey: object,
        place: Place,
    ) -> torch.Tensor:
        """Combine a chunk; called from several threads at a time, in any order.

        Args:
            values: (n, m) float64, finite, rows in canonical order; may be overwritten.
            base: (m,) float64, or None without a base.
            weights: (n,) float64 with sum 1, rounded.
            survey: what `survey` returned for this tensor or model.
            place: where the m elements lie, for seeded choices; m is at most CHUNK (see `by_rows`).

        Returns:
            (m,) float64. Column j must depend on nothing but column j, so that the result does not
            depend on how a tensor is cut. What is not finite overflows as the dtype does.
        """


Method = LinearMethod | ElementwiseMethod
Factory = TypeVar("Factory", bound="Callable[..., Method]")

_registered: dict[str, Callable[..., Method]] = {}


def register(factory: Factory, name: str | None = None) -> Factory:
    """Make a class (or a function) that builds a method known by its name; works as a decorator.

    The name is `name`, or the class's own. Raises ValueError when another one has it.
    """
    known_as: str = name or factory.name  # type: ignore[attr-defined]
    if _registered.setdefault(known_as, factory) is not factory:
        raise ValueError(f"there is a merge method {known_as!r} already")
    return factory


def names() -> list[str]:
    """Return the name of every method that can be had, sorted."""
    found = {*_tables(), *_registered, *(entry.name for entry in entry_points(group=ENTRY_POINTS))}
    return sorted(found)


def get(name: str, **options: object) -> Method:
    """Build a method by name; raises MergeError for an unknown name or option."""
    factory = _find(name)
    _check_names(name, factory, options)
    try:
        return factory(**options)
    except (TypeError, ValueError) as error:
        raise MergeError(f"merge method {name}: {error}", hint="sbp2p merge --list") from error


def _check_names(name: str, factory: Callable[..., Method], options: Mapping[str, object]) -> None:
    parameters = inspect.signature(factory).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return
    known = [each.name for each in parameters]
    for option in options:
        if option not in known:
            raise MergeError(
                f"merge method {name} has no option {option!r}",
                hint=f"it has {', '.join(known)}" if known else "it has none",
            )


def describe(name: str) -> Method | type[Method]:
    """Return something with a method's `doc`, `needs_base` and `inputs_min`; raises MergeError."""
    factory = _find(name)
    return factory if isinstance(factory, type) else factory()


def options_of(name: str) -> dict[str, object]:
    """Return a method's options and what they are by default; raises MergeError."""
    parameters = inspect.signature(_find(name)).parameters.values()
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {each.name: each.default for each in parameters if each.kind not in variable}


def _find(name: str) -> Callable[..., Method]:
    if name not in _registered and (module := _tables().get(name)) is not None:
        importlib.import_module(module)
    if (factory := _registered.get(name)) is not None:
        return factory
    for entry in entry_points(group=ENTRY_POINTS, name=name):
        loaded: Callable[..., Method] = entry.load()
        return loaded
    raise MergeError(f"no merge method is called {name!r}", hint=f"one of {', '.join(names())}")


def _tables() -> dict[str, str]:
    found: dict[str, str] = {}
    for family in FAMILIES:
        if find_spec(family) is not None:
            found.update(importlib.import_module(family).METHODS)
    return found


Names = Literal["strict", "intersection", "keep-local"]
"""What to do with tensors that not every model has; see `engine`."""
