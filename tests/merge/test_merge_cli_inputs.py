"""What the arguments of `sbp2p merge` mean: weights and options, before anything is opened."""

from __future__ import annotations

from fractions import Fraction

import pytest

from sbp2p.cli.merge_inputs import is_link, is_path, is_reference, parse_options, parse_weights
from sbp2p.errors import ConfigError

LINK = "sbp2p://12D3KooW/model?peer=/ip4/127.0.0.1"
INPUTS = ["a", "folder=b", LINK]


@pytest.mark.parametrize(
    ("texts", "weights"),
    [
        ([], [1, 1, 1]),
        (["2", "0.1", "1/3"], [2, Fraction(1, 10), Fraction(1, 3)]),
        (["folder=b=0.5"], [1, Fraction(1, 2), 1]),
        ([f"{LINK}=3", "a=0"], [0, 1, 3]),
    ],
)
def test_weights(texts: list[str], weights: list[Fraction]) -> None:
    assert parse_weights(INPUTS, texts) == weights


@pytest.mark.parametrize(
    "texts",
    [["1"], ["1", "2", "x"], ["c=1"], ["a=1", "a=2"], ["a=1", "2"], ["a=-1"], ["a=1/0"], ["a=nan"]],
)
def test_weights_that_cannot_be(texts: list[str]) -> None:
    with pytest.raises(ConfigError, match="weight"):
        parse_weights(INPUTS, texts)


def test_options_are_numbers_flags_or_texts() -> None:
    texts = ["density=0.2", "f=3", "whole-model=true", "origin=base", "share=1/5", "empty="]
    assert parse_options(texts) == {
        "density": 0.2,
        "f": 3,
        "whole_model": True,
        "origin": "base",
        "share": "1/5",
        "empty": "",
    }


@pytest.mark.parametrize("texts", [["density"], ["=1"], ["a b=1"], ["f=1", "f=2"]])
def test_options_that_cannot_be(texts: list[str]) -> None:
    with pytest.raises(ConfigError, match="option"):
        parse_options(texts)


def test_what_an_input_is(tmp_path: object) -> None:
    assert is_link(LINK)
    assert not is_path(LINK)
    assert is_path(str(tmp_path))
    assert is_reference("model@3")
    assert not is_reference(LINK)
