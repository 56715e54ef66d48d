"""NumPy arrays and scikit-learn estimators as plugins."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.linear_model import (
    Lasso,
    LinearRegression,
    LogisticRegression,
    Perceptron,
    Ridge,
    SGDClassifier,
    SGDOneClassSVM,
    SGDRegressor,
)
from sklearn.naive_bayes import BernoulliNB, GaussianNB, MultinomialNB
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from sbp2p.errors import MergeError
from sbp2p.plugins import wrap
from sbp2p.plugins.numpy_arrays import NumpyArrays, array_of, raw_of
from sbp2p.plugins.sklearn_estimator import SklearnEstimator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sbp2p.checkpoint.reader import RawTensor

DTYPES = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16",
    "float32", "float64", "complex64", "complex128",
]  # fmt: skip
RANDOM = np.random.default_rng(7)
ROWS = np.abs(RANDOM.normal(size=(60, 5)))
NUMBERS = RANDOM.integers(0, 2, 60)
WORDS = np.array(["ant", "bee", "cat"])[RANDOM.integers(0, 3, 60)]
VALUES = RANDOM.normal(size=60)
PAIRS = RANDOM.normal(size=(60, 2))
ESTIMATORS = [
    (LinearRegression(), VALUES), (LinearRegression(), PAIRS), (Ridge(), VALUES), (Lasso(), VALUES),
    (Ridge(fit_intercept=False), VALUES), (LogisticRegression(), WORDS),
    (LogisticRegression(), NUMBERS), (LinearSVC(), WORDS), (SGDClassifier(), WORDS),
    (SGDClassifier(loss="log_loss"), NUMBERS), (SGDRegressor(), VALUES), (SGDOneClassSVM(), None),
    (Perceptron(), WORDS), (MLPClassifier((7,), random_state=1), WORDS),
    (MLPClassifier((7,), random_state=1), NUMBERS), (MLPRegressor(hidden_layer_sizes=(4,)), VALUES),
    (MLPRegressor(hidden_layer_sizes=(4,)), PAIRS), (GaussianNB(), WORDS), (MultinomialNB(), WORDS),
    (BernoulliNB(), NUMBERS), (KMeans(3, n_init=1), None), (MiniBatchKMeans(3, n_init=1), None),
]  # fmt: skip


def same(left: Mapping[str, RawTensor], right: Mapping[str, RawTensor]) -> bool:
    return list(left) == list(right) and all(
        left[name].data == right[name].data and left[name].shape == right[name].shape
        for name in left
    )


def fitted(estimator: Any, targets: Any, rows: Any = ROWS) -> Any:
    model = clone(estimator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a few rows converge is not what is tested
        return model.fit(rows, targets)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_survives_bit_for_bit(dtype: str) -> None:
    size = np.dtype(dtype).itemsize
    whole = np.arange(6 * size, dtype=np.uint8).view(dtype).reshape(2, 3)
    if dtype == "bool":
        whole = np.array([[True, False, True], [False, False, True]])
    source = {"a": whole, "b": np.array(whole[0, 1]), "c": np.empty((0, 2), dtype)}
    target = {name: np.zeros_like(array) for name, array in source.items()}
    held = dict(target)
    wrap(target).load(wrap(source).tensors())
    assert all(target[name].tobytes() == source[name].tobytes() for name in source)
    assert all(target[name] is held[name] for name in source)


def test_strides_do_not_matter_and_a_snapshot_is_a_copy() -> None:
    source = np.arange(24.0).reshape(2, 3, 4)
    target = np.zeros((4, 3, 2)).T[:, :, ::-1]
    tensors = wrap({"x": source}).tensors()
    source += 1
    wrap({"x": target}).load(tensors)
    assert np.array_equal(target, source - 1)


def test_an_array_under_two_names_is_listed_once() -> None:
    shared = np.zeros(4)
    arrays = {"a": shared, "b": shared[:], "c": np.zeros(4)}
    assert list(wrap(arrays).tensors()) == ["a", "c"]
    wrap(arrays).load({name: raw_of(name, np.ones(4)) for name in ("a", "c")})
    assert arrays["b"].tolist() == [1, 1, 1, 1]


def read_only() -> Any:
    array = np.zeros(2)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": np.zeros(2, ">f4")}, "byte order of another machine (>f4)"),
        ({"x": np.zeros(2, [("a", "f4")])}, "'x' is structured"),
        ({"x": np.array(["a"])}, "'x' is <U1"),
        ({"x": np.array([None])}, "'x' is object"),
        ({"x": np.zeros(2, np.longdouble)}, "which cannot travel"),
        ({"x": read_only()}, "'x' is read-only"),
        ({"x": np.float32(1)}, "'x' is a float32, which cannot be changed in place"),
        ({"x": ROWS[:4], "y": ROWS[2:]}, "'x' and 'y' share a part"),
    ],
)
def test_what_cannot_be_shared_is_refused_by_name(arrays: Any, says: str) -> None:
    with pytest.raises(MergeError) as caught:
        wrap(arrays).tensors()
    assert says in str(caught.value)
    assert caught.value.hint


def test_what_does_not_fit_changes_nothing() -> None:
    arrays = {"a": np.zeros(2), "b": np.zeros(3)}
    good = raw_of("a", np.ones(2))
    for bad in (raw_of("b", np.ones(2)), replace(good, dtype="BF16")):
        with pytest.raises(MergeError):
            wrap(arrays).load({"a": good, "b": bad})
    assert arrays["a"].tolist() == [0, 0]


def test_an_empty_dict_takes_what_comes() -> None:
    empty: dict[str, Any] = {}
    tensors = wrap({"a": np.arange(3)}).tensors()
    with pytest.raises(MergeError, match="NumPy has no dtype for"):
        NumpyArrays(empty).load({"a": replace(tensors["a"], dtype="BF16", shape=(12,))})
    NumpyArrays(empty).load(tensors)
    assert empty["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("precision", [np.float64, np.float32])
@pytest.mark.parametrize(("estimator", "targets"), ESTIMATORS, ids=lambda each: type(each).__name__)
def test_a_newcomer_predicts_as_its_donor_and_learns_on(
    estimator: Any, targets: Any, precision: Any
) -> None:
    rows = ROWS.astype(precision)
    donor, newcomer = fitted(estimator, targets, rows), clone(estimator)
    tensors = wrap(donor).tensors()
    wrap(newcomer).load(tensors)
    assert np.array_equal(newcomer.predict(rows), donor.predict(rows))
    assert same(wrap(newcomer).tensors(), tensors)
    if hasattr(newcomer, "partial_fit"):
        newcomer.partial_fit(rows, targets)
    wrap(newcomer).load(tensors)
    assert np.array_equal(newcomer.predict(rows), donor.predict(rows))


def test_arrays_and_lists_of_a_fitted_estimator_stay_the_same_objects() -> None:
    donor = fitted(MLPClassifier((7,), random_state=1), WORDS)
    model = fitted(MLPClassifier((7,), random_state=2), WORDS)
    coefficients, first = model.coefs_, model.coefs_[0]
    wrap(model).load(wrap(donor).tensors())
    assert model.coefs_ is coefficients
    assert model.coefs_[0] is first
    assert np.array_equal(first, donor.coefs_[0])


def test_other_labels_are_other_tensors() -> None:
    words, numbers = fitted(GaussianNB(), WORDS), fitted(GaussianNB(), NUMBERS)
    with pytest.raises(MergeError, match="classes_"):
        wrap(words).load(wrap(numbers).tensors())
    shifted = fitted(GaussianNB(), NUMBERS + 1)
    with pytest.raises(MergeError, match="did not come: 'classes_#"):
        wrap(shifted).load(wrap(numbers).tensors())


def test_a_newcomer_made_for_something_else_stays_as_it_was() -> None:
    tensors = wrap(fitted(MLPClassifier((7,)), WORDS)).tensors()
    newcomer = MLPClassifier((8,))
    with pytest.raises(MergeError, match="has the shape"):
        wrap(newcomer).load(tensors)
    assert not hasattr(newcomer, "coefs_")
    with pytest.raises(MergeError):
        wrap(LogisticRegression()).load(tensors)


def test_sizes_that_a_peer_made_up_allocate_nothing() -> None:
    tensors = dict(wrap(fitted(GaussianNB(), WORDS)).tensors())
    name = next(each for each in tensors if each.startswith("n_features_in_"))
    huge = raw_of(name, np.array(10**15))
    with pytest.raises(MergeError, match="fits no array that came"):
        wrap(GaussianNB()).load({**tensors, name: huge})
    del tensors[name]
    with pytest.raises(MergeError, match="does not say how many features"):
        wrap(GaussianNB()).load(tensors)
    texts = next(each for each in tensors if each.startswith("classes_"))
    for junk in (b"{", b"[1]", b"\xff", b"[" * 100_000):
        bad = raw_of(texts, np.frombuffer(junk, np.uint8))
        with pytest.raises(MergeError, match="not a list of texts"):
            wrap(GaussianNB()).load({**tensors, texts: bad})


def test_names_of_features_come_along() -> None:
    donor = fitted(GaussianNB(), WORDS)
    donor.feature_names_in_ = np.array(list("abcde"), dtype=object)
    newcomer = GaussianNB()
    wrap(newcomer).load(wrap(donor).tensors())
    assert newcomer.feature_names_in_.tolist() == list("abcde")


@pytest.mark.parametrize(
    ("estimator", "says"),
    [
        (DecisionTreeClassifier(), "what a sklearn.tree._classes.DecisionTreeClassifier learns"),
        (SGDClassifier(average=True), "averages its own weights"),
    ],
)
def test_an_estimator_that_cannot_be_merged_is_refused(estimator: Any, says: str) -> None:
    with pytest.raises(MergeError) as caught:
        wrap(estimator)
    assert says in str(caught.value)
    assert caught.value.hint


def test_an_unfitted_estimator_has_nothing_to_give() -> None:
    with pytest.raises(MergeError, match="GaussianNB is not fitted"):
        wrap(GaussianNB()).tensors()
    plugin = SklearnEstimator(GaussianNB(), learned=["theta_"])
    with pytest.raises(MergeError, match="not known how to make a GaussianNB"):
        plugin.load({})


def test_attributes_can_be_named() -> None:
    donor, model = fitted(GaussianNB(), WORDS), fitted(GaussianNB(), WORDS[::-1])
    SklearnEstimator(model, learned=["theta_"]).load(
        SklearnEstimator(donor, learned=["theta_"]).tensors()
    )
    assert np.array_equal(model.theta_, donor.theta_)
    assert not np.array_equal(model.var_, donor.var_)


def test_an_array_that_is_mapped_from_a_file_is_replaced() -> None:
    donor, model = fitted(GaussianNB(), WORDS), fitted(GaussianNB(), WORDS[::-1])
    model.theta_.flags.writeable = False
    wrap(model).load(wrap(donor).tensors())
    assert np.array_equal(model.theta_, donor.theta_)
    assert np.array_equal(array_of(wrap(model).tensors()["theta_"]), donor.theta_)


def junk(draw: Any, tensors: Mapping[str, RawTensor]) -> dict[str, RawTensor]:
    """Return tensors of which some are missing, renamed, swapped, or say something else."""
    found = dict(tensors)
    for name in draw(st.lists(st.sampled_from(sorted(tensors)), min_size=1, max_size=3)):
        if name not in found:
            continue
        tensor = found[name]
        sizes = st.sampled_from([0, 1, 2, 3, 5, 10**12])
        shape = draw(st.one_of(st.just(tensor.shape), st.lists(sizes, max_size=3).map(tuple)))
        dtype = draw(st.sampled_from([tensor.dtype, "I64", "F32", "BF16", "C64", "F4", "??"]))
        data = draw(st.sampled_from([tensor.data.tobytes(), bytes(8), b"\xff" * 8]))
        change = draw(st.sampled_from(["change", "drop", "rename", "swap"]))
        if change == "drop":
            del found[name]
        elif change == "rename":
            found[name + draw(st.sampled_from(["x", "#", "#aa", ".0", ":text#"]))] = found.pop(name)
        elif change == "swap":
            found[name] = tensors[draw(st.sampled_from(sorted(tensors)))]
        else:
            found[name] = replace(tensor, dtype=dtype, shape=shape, data=memoryview(data))
    return found


DONORS = [
    (clone(estimator), wrap(fitted(estimator, targets)).tensors())
    for estimator, targets in (
        (SGDClassifier(), WORDS),
        (LinearRegression(), PAIRS),
        (MLPClassifier((3,), max_iter=5), NUMBERS),
        (MiniBatchKMeans(2, n_init=1), None),
    )
]


@settings(max_examples=150)
@given(st.data())
def test_whatever_comes_a_newcomer_is_made_of_it_or_a_merge_error(data: st.DataObject) -> None:
    estimator, tensors = data.draw(st.sampled_from(DONORS))
    newcomer = clone(estimator)
    try:
        wrap(newcomer).load(junk(data.draw, tensors))
    except MergeError:
        assert vars(newcomer).keys() == vars(clone(estimator)).keys()
    else:
        newcomer.predict(ROWS)
