"""Which plugin wraps what, third parties' plugins, and what is held by none."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sbp2p.checkpoint.reader import RawTensor
from sbp2p.errors import ConfigError, MergeError
from sbp2p.plugins import Plugin, Snapshot, register, registry, wrap
from sbp2p.plugins.plugin import check_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[2]
ONE = RawTensor("x", "U8", (2,), memoryview(b"ab"))

SOURCE = """
from sbp2p.checkpoint.reader import RawTensor

class Model:
    def __init__(self, weights):
        self.weights = bytearray(weights)

class ModelPlugin:
    def __init__(self, model, *, name="weights"):
        self.model, self.name = model, name

    def tensors(self):
        data = bytes(self.model.weights)
        return {self.name: RawTensor(self.name, "U8", (len(data),), memoryview(data))}

    def load(self, tensors):
        self.model.weights[:] = tensors[self.name].data
"""


class Own:
    """A model that is a plugin itself."""

    def __init__(self) -> None:
        self.held: Mapping[str, RawTensor] = {"x": ONE}

    def tensors(self) -> Mapping[str, RawTensor]:
        return self.held

    def load(self, tensors: Mapping[str, RawTensor]) -> None:
        self.held = tensors


class Special:
    """A model of a class that the program registers."""


class MoreSpecial(Special):
    pass


def install(folder: Path, name: str, source: str, entry: str) -> None:
    """Put a distribution with one module and one entry point into a folder."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(source)
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[sbp2p.plugins]\n{entry}\n")


def test_an_installed_package_wraps_its_own_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "othernet", SOURCE, "othernet.Model = othernet:ModelPlugin")
    monkeypatch.syspath_prepend(tmp_path)
    othernet: Any = __import__("othernet")
    monkeypatch.setitem(sys.modules, "othernet", othernet)
    model = othernet.Model(b"abc")
    wrap(model).load(wrap(othernet.Model(b"xyz")).tensors())
    assert model.weights == b"xyz"
    assert list(wrap(type("Sub", (othernet.Model,), {})(b""), name="w").tensors()) == ["w"]


def test_two_packages_that_want_one_class_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = registry.full_name(Special)
    for name in ("onenet", "twonet"):
        install(tmp_path, name, "", f"{kind} = {name}:Plugin")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"onenet \(onenet:Plugin\), twonet"):
        wrap(Special())


def test_an_installed_package_cannot_take_what_is_built_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "evilnet", "", "builtins.dict = evilnet:Plugin")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MergeError, match="no plugin wraps a dict of str"):
        wrap({"x": "text"})


def test_a_program_registers_classes_by_type_or_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    register(Special, lambda model, **options: Snapshot({"x": ONE}))
    assert list(wrap(MoreSpecial()).tensors()) == ["x"]
    register(f"{__name__}.MoreSpecial", lambda model, **options: Snapshot({}))
    assert wrap(MoreSpecial()).tensors() == {}


def test_a_plugin_is_its_own() -> None:
    own = Own()
    plugin: Plugin = wrap(own)
    assert plugin is own
    with pytest.raises(TypeError, match="optimizer"):
        wrap(own, optimizer=None)


@pytest.mark.parametrize("model", [3, "text", [], object()])
def test_what_nobody_wraps_is_named_with_its_class(model: object) -> None:
    with pytest.raises(MergeError) as caught:
        wrap(model)
    assert registry.full_name(type(model)) in str(caught.value)
    assert "register" in caught.value.hint


def test_a_snapshot_takes_the_same_tensors_again() -> None:
    snapshot = Snapshot({"x": ONE})
    snapshot.load({"x": replace(ONE, data=memoryview(b"cd"))})
    assert snapshot.tensors()["x"].data.tobytes() == b"cd"
    with pytest.raises(MergeError, match="shape"):
        snapshot.load({"x": replace(ONE, shape=(1, 2))})
    empty = Snapshot({})
    empty.load({"x": ONE})
    assert list(empty.tensors()) == ["x"]


def test_many_wrong_names_are_not_all_listed() -> None:
    with pytest.raises(MergeError, match="'a', 'b', 'c', 'd', 'e' and 4 more"):
        check_tensors({"x": ONE}, dict.fromkeys("abcdefghi", ("U8", (2,))))
    quantised = RawTensor("x", "Q4_K", (2,), memoryview(b""))
    with pytest.raises(MergeError, match="which no plugin can load"):
        check_tensors({"x": quantised}, {"x": ("Q4_K", (2,))})


def test_wrapping_imports_no_framework_that_the_model_does_not_use() -> None:
    program = """
import sys
from sbp2p.plugins import Snapshot, wrap
from sbp2p.errors import MergeError
wrap(Snapshot({}))
try:
    wrap({"x": 1})
except MergeError:
    pass
assert not {"torch", "numpy", "sklearn", "trio"} & set(sys.modules), sys.modules
"""
    paths = ":".join(map(str, (ROOT, ROOT / "protocol", ROOT / "keys")))
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": paths},
    )
    assert done.returncode == 0, done.stderr
