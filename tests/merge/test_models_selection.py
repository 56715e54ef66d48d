"""Order statistics of task vectors: exact, for any size of buckets and pieces."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp2p.merge.models import selection
from sbp2p.merge.models.selection import order_statistics
from tests.merge.model_samples import ListGroup, noise


def sorted_magnitudes(values: torch.Tensor, base: torch.Tensor) -> list[float]:
    ordered: list[float] = (values - base).abs().sort().values.tolist()
    return ordered


@pytest.fixture(params=[(2**16, 2**22), (8, 16), (0, 1)], ids=["usual", "narrow", "to the bit"])
def _limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    direct, gather = request.param
    monkeypatch.setattr(selection, "DIRECT_MAX", direct)
    monkeypatch.setattr(selection, "GATHER_MAX", gather)


@pytest.mark.usefixtures("_limits")
@pytest.mark.parametrize("chunk", [1000, 333])
def test_every_rank_is_that_of_a_sort(chunk: int) -> None:
    base, values = noise(1, 1000), noise(2, 1000) ** 5
    ranks = [0, 1, 499, 500, 998, 999]
    ordered = sorted_magnitudes(values, base)
    found = order_statistics(ListGroup([base, values], base, chunk=chunk), 1, ranks)
    assert found == [ordered[rank] for rank in ranks]


@pytest.mark.usefixtures("_limits")
def test_all_the_same_zero_tiny_and_huge() -> None:
    tiny, huge = 5e-324, 1.7e308
    base = torch.zeros(8, dtype=torch.float64)
    values = torch.tensor([0.0, -0.0, tiny, -tiny, 1.0, -1.0, huge, -huge], dtype=torch.float64)
    expected = [0.0, 0.0, tiny, tiny, 1.0, 1.0, huge, huge]
    assert order_statistics(ListGroup([values], base), 0, list(range(8))) == expected
    ones = torch.ones(100, dtype=torch.float64)
    assert order_statistics(ListGroup([ones], 0 * ones, chunk=7), 0, [0, 50, 99]) == [1.0] * 3


@settings(max_examples=25)
@given(
    values=st.lists(
        st.floats(-1e300, 1e300) | st.sampled_from([0.0, 1.0, -1.0, 1.5]), min_size=1, max_size=60
    ),
    data=st.data(),
)
def test_any_numbers(values: list[float], data: st.DataObject) -> None:
    tensor = torch.tensor(values, dtype=torch.float64)
    base = torch.zeros_like(tensor)
    rank = data.draw(st.integers(0, len(values) - 1))
    group = ListGroup([tensor], base, chunk=data.draw(st.integers(1, 60)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "DIRECT_MAX", data.draw(st.integers(0, 20)))
        patch.setattr(selection, "GATHER_MAX", data.draw(st.integers(1, 20)))
        assert order_statistics(group, 0, [rank]) == [sorted_magnitudes(tensor, base)[rank]]


def test_what_is_gathered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "DIRECT_MAX", 100)
    monkeypatch.setattr(selection, "GATHER_MAX", 1000)
    seen: list[int] = []
    room = torch.empty

    def watched(size: int, *, dtype: torch.dtype) -> torch.Tensor:
        seen.append(size)
        return room(size, dtype=dtype)

    monkeypatch.setattr(torch, "empty", watched)
    values = noise(3, 200_000)
    order_statistics(ListGroup([values], 0 * values), 0, [1000, 150_000])
    assert seen
    assert max(seen) <= 1000
