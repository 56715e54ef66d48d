"""Which tensors of a model are shared: chosen by names and globs, as in `fetch --tensor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from sbp2p.checkpoint.select import matching

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")


def chosen(
    things: Mapping[str, T], only: Sequence[str] = (), exclude: Sequence[str] = ()
) -> dict[str, T]:
    """Return what `only` matches (all if empty) and `exclude` does not; raises NotFoundError.

    A pattern that matches nothing is an error, because it is a misspelt one.
    """
    names = list(things)
    kept = set(matching(only, names, "tensor") if only else names)
    if exclude:
        kept -= set(matching(exclude, names, "tensor"))
    return {name: things[name] for name in names if name in kept}
