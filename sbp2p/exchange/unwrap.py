"""One error instead of a group of one: what callers of the public API expect."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from sbp2p.errors import Sbp2pError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def unwrapped_errors() -> Iterator[None]:
    """Raise the one error of a nursery bare; of several Sbp2pErrors, the first."""
    try:
        yield
    except BaseExceptionGroup as group:
        errors = list(_leaves(group))
        if len(errors) == 1 or all(isinstance(error, Sbp2pError) for error in errors):
            raise errors[0] from errors[0].__cause__
        raise


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
