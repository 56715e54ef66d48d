"""A scikit-learn estimator as a plugin: what it learned, as arrays.

Theory of operation: what an estimator learned are attributes that end in `_`, but not each of them
can be averaged. So for each known class of estimators it is written down which attributes are
learned (`coef_`, `coefs_`, `theta_`): they are merged. Lists are one tensor for each item. Others
are facts that must be the same at every peer for a merge to mean anything: the class labels, the
number of features. A fact travels under a name that ends in a digest of it, so peers that differ in
one have different tensors, and a merge names it. Everything else (curves, caches, what the solver
remembers) stays local.

An estimator that is not fitted becomes a model by what it is given: a clone is fitted to a few
made-up rows with the right labels and number of features, so that scikit-learn itself sets up what
it needs, and then every learned number is replaced.

Counts of samples (naive Bayes) are averaged as the rest is, so a merge weighs peers, not samples,
unless the method does. Cluster centres can be averaged only if all peers began with the same ones:
begin by a bootstrap.

Error cases (MergeError): an estimator of which it is not known what it learns, one that is not
fitted when it should give, one that averages by itself (SGD with `average`), other labels.
"""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from blake3 import blake3

from sbp2p.checkpoint.formats.layout import shown
from sbp2p.checkpoint.reader import RawTensor
from sbp2p.errors import MergeError

from .numpy_arrays import array_of, check_array, raw_of, spec_of
from .plugin import check_length, check_tensors
from .registry import full_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    Array = np.ndarray[Any, Any]

_LINEAR: Final = ("coef_", "intercept_")
_COUNTS: Final = ("feature_count_", "class_count_", "feature_log_prob_", "class_log_prior_")
_LEARNED: Final = {
    "LinearRegression": _LINEAR,
    "Ridge": _LINEAR,
    "Lasso": _LINEAR,
    "ElasticNet": _LINEAR,
    "LogisticRegression": _LINEAR,
    "LinearSVC": _LINEAR,
    "LinearSVR": _LINEAR,
    "SGDClassifier": (*_LINEAR, "t_"),
    "SGDRegressor": (*_LINEAR, "t_"),
    "SGDOneClassSVM": ("coef_", "offset_", "t_"),
    "Perceptron": (*_LINEAR, "t_"),
    "MLPClassifier": ("coefs_", "intercepts_", "t_"),
    "MLPRegressor": ("coefs_", "intercepts_", "t_"),
    "GaussianNB": ("theta_", "var_", "class_count_", "class_prior_", "epsilon_"),
    "MultinomialNB": _COUNTS,
    "BernoulliNB": _COUNTS,
    "KMeans": ("cluster_centers_",),
    "MiniBatchKMeans": ("cluster_centers_", "_counts", "n_steps_"),
}
"""What is merged, by the name of the class in scikit-learn; subclasses learn the same."""

_FACTS: Final = ("classes_", "n_features_in_", "n_outputs_", "feature_names_in_")
_TEXT: Final = ":text"
_MARK: Final = "#"
"""Stands before the digest in the name of a fact; `:text` before it if the fact is texts."""

_DIGEST_BYTES: Final = 8
_ROWS_MIN: Final = 4


class SklearnEstimator:
    """Wraps an estimator: linear models, SGD, perceptrons, naive Bayes, k-means.

    Args:
        estimator: fitted, or not yet: then the first `load` makes it a model.
        learned: attributes to share, for a class of estimators that is not known here; numbers,
            arrays of numbers and lists of these.
    """

    def __init__(self, estimator: Any, *, learned: Sequence[str] | None = None) -> None:
        self._estimator = estimator
        self._learned = tuple(learned) if learned is not None else _what_it_learns(estimator)
        self._is_known = learned is None
        if getattr(estimator, "average", False):
            raise MergeError(
                f"{type(estimator).__name__}(average=...) averages its own weights out of sight, "
                "which would undo a merge",
                hint="make it with average=False: the peers average",
            )

    def tensors(self) -> Mapping[str, RawTensor]:
        """Return a copy of what was learned, and the facts; raises MergeError."""
        if not self._is_fitted:
            raise MergeError(
                f"{type(self._estimator).__name__} is not fitted, so there is nothing to share",
                hint="fit it (partial_fit) first, or bootstrap it from a peer",
            )
        return {
            **{name: raw_of(name, array) for name, array in self._arrays(self._estimator)},
            **_facts(self._estimator),
        }

    def load(self, tensors: Mapping[str, RawTensor]) -> None:
        """Put in what peers learned, all or nothing; raises MergeError when it is not for this."""
        target = self._estimator if self._is_fitted else self._begin(tensors)
        arrays = dict(self._arrays(target))
        facts = _facts(target)
        expected = {name: spec_of(array) for name, array in arrays.items()}
        expected |= {name: (fact.dtype, fact.shape) for name, fact in facts.items()}
        check_tensors(tensors, expected)
        given = {name: array_of(tensors[name]) for name in arrays}
        for name in self._learned:
            value = getattr(target, name)
            setattr(target, name, _replaced(value, name, given))
        if target is not self._estimator:
            vars(self._estimator).update(vars(target))

    @property
    def _is_fitted(self) -> bool:
        return all(getattr(self._estimator, name, None) is not None for name in self._learned)

    def _arrays(self, estimator: Any) -> Iterator[tuple[str, Array]]:
        for attribute in self._learned:
            value = getattr(estimator, attribute)
            items = _items(attribute, value) if isinstance(value, list) else [(attribute, value)]
            for name, item in items:
                array = np.asarray(item)
                check_array(name, array)
                yield name, array

    def _begin(self, tensors: Mapping[str, RawTensor]) -> Any:
        """Return a fitted clone for the facts that came; its numbers mean nothing yet."""
        from sklearn.base import clone

        name = type(self._estimator).__name__
        if not self._is_known:
            raise MergeError(
                f"it is not known how to make a {name} from arrays",
                hint="fit it once, to any data, before it is bootstrapped",
            )
        for full, tensor in tensors.items():
            check_length(tensor)  # what is set up is as large as these say
            if not tensor.data.nbytes:
                raise MergeError(f"{shown(full)} is empty", hint="whoever made it is at fault")
        facts = _read_facts(tensors)
        labels = facts.get("classes_", np.zeros(1))
        if "n_features_in_" not in facts or labels.ndim != 1 or not len(labels):
            raise MergeError(
                "what came does not say how many features or which classes there are",
                hint="it is not what a fitted estimator shares",
            )
        fresh = clone(self._estimator)
        rows, targets = _made_up(fresh, facts, tensors)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of convergence and the like: it means nothing
                _fit(fresh, rows, targets, facts.get("classes_"))
        except ValueError as error:
            raise MergeError(
                f"{name} cannot be set up for what came: {error}",
                hint="every peer has to make its estimator alike",
            ) from error
        if "feature_names_in_" in facts:
            fresh.feature_names_in_ = np.asarray(facts["feature_names_in_"], dtype=object)
        return fresh


def _what_it_learns(estimator: Any) -> tuple[str, ...]:
    for kind in type(estimator).__mro__:
        if kind.__module__.startswith("sklearn.") and kind.__name__ in _LEARNED:
            return _LEARNED[kind.__name__]
    raise MergeError(
        f"it is not known what a {full_name(type(estimator))} learns",
        hint="name its attributes: SklearnEstimator(estimator, learned=['coef_']); of a pipeline, "
        "share the last step",
    )


def _items(attribute: str, values: list[Any]) -> list[tuple[str, Any]]:
    return [(f"{attribute}.{number}", value) for number, value in enumerate(values)]


def _replaced(value: Any, name: str, given: Mapping[str, Array]) -> Any:
    """Return an attribute's new value: the same array when it can be written in place."""
    if isinstance(value, list):
        # the list stays, too: a solver may hold it
        value[:] = [_replaced(item, full, given) for full, item in _items(name, value)]
        return value
    array = given[name]
    if isinstance(value, np.ndarray):
        if not value.flags.writeable:  # mapped from a file by joblib
            return array
        value[...] = array
        return value
    return type(value)(array.item())


def _facts(estimator: Any) -> dict[str, RawTensor]:
    found: dict[str, RawTensor] = {}
    for attribute in _FACTS:
        value = getattr(estimator, attribute, None)
        if value is None:
            continue
        array, kind = np.asarray(value), ""
        if array.dtype.kind in "OUS":
            texts = [str(each) for each in array.ravel()]
            array = np.frombuffer(json.dumps(texts).encode(), dtype=np.uint8)
            kind = _TEXT
        check_array(attribute, array)
        raw = raw_of(attribute, array)
        content = f"{raw.dtype} {raw.shape} ".encode() + raw.data
        digest = blake3(content).hexdigest(length=_DIGEST_BYTES)
        name = f"{attribute}{kind}{_MARK}{digest}"
        found[name] = RawTensor(name, raw.dtype, raw.shape, raw.data)
    return found


def _read_facts(tensors: Mapping[str, RawTensor]) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for name, tensor in tensors.items():
        attribute, mark, _ = name.partition(_MARK)
        if not mark:
            continue
        array = array_of(tensor)
        if attribute.endswith(_TEXT):
            array = _texts(name, array)
        found[attribute.removesuffix(_TEXT)] = array
    return found


def _texts(name: str, array: Array) -> Array:
    try:
        texts = json.loads(array.tobytes())
        if isinstance(texts, list) and all(isinstance(each, str) for each in texts):
            return np.asarray(texts)
    except (ValueError, RecursionError):
        pass
    raise MergeError(f"{shown(name)} is not a list of texts", hint="whoever made it is at fault")


def _made_up(
    estimator: Any, facts: Mapping[str, Array], tensors: Mapping[str, RawTensor]
) -> tuple[Array, Array | None]:
    """Return rows and targets that an estimator with these facts can be fitted to."""
    from sklearn.base import is_classifier, is_regressor

    learned = [each for name, each in tensors.items() if _MARK not in name]
    sizes = {1, *(size for each in learned for size in each.shape)}
    features = _size("n_features_in_", facts, sizes)
    outputs = _size("n_outputs_", facts, sizes)
    classes = facts.get("classes_", np.arange(2))
    count = max(_ROWS_MIN, getattr(estimator, "n_clusters", 0))
    if not hasattr(estimator, "partial_fit"):  # what can be told its classes needs no row of each
        count = max(count, len(classes))
    precision = np.float32 if learned and learned[0].dtype == "F32" else np.float64
    numbers = np.arange(count * features, dtype=np.int64) * 7 % 11
    rows = numbers.reshape(count, features).astype(precision)
    if is_classifier(estimator):
        return rows, classes[np.arange(count) % len(classes)]
    if is_regressor(estimator):
        coefficients = tensors.get("coef_")
        if coefficients is not None and len(coefficients.shape) == 2:
            return rows, np.ones((count, coefficients.shape[0]), precision)
        return rows, np.ones((count,) if outputs == 1 else (count, outputs), precision)
    return rows, None


def _size(name: str, facts: Mapping[str, Array], sizes: Collection[int]) -> int:
    """Return a size that is a fact, if what was learned has it, too: else it could be anything."""
    size = facts[name].ravel().tolist() if name in facts else [1]
    if len(size) != 1 or size[0] not in sizes:
        raise MergeError(
            f"{name} is {size[:3]}, which fits no array that came",
            hint="whoever made it is at fault",
        )
    return int(size[0])


def _fit(estimator: Any, rows: Array, targets: Array | None, classes: Array | None) -> None:
    if not hasattr(estimator, "partial_fit"):
        estimator.fit(rows, targets)
        return
    if classes is not None:
        estimator.partial_fit(rows, targets, classes=classes)
    else:
        estimator.partial_fit(rows, targets)
    # the memory of a solver that saw what was made up
    vars(estimator).pop("_optimizer", None)
    if hasattr(estimator, "loss_curve_"):
        estimator.loss_curve_, estimator.best_loss_ = [], np.inf
