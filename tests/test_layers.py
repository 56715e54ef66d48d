"""The lower packages load with everything that does I/O out of reach; import stays cheap on top."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

_BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(name + " is not for this layer")
sys.meta_path.insert(0, Block())
for name in {blocked!r}:
    sys.modules.pop(name, None)
import importlib
for module in {modules!r}:
    importlib.import_module(module)
"""


def _modules(package: str) -> list[str]:
    root = __import__(package)
    found = pkgutil.walk_packages(root.__path__, f"{package}.")
    return [package, *(module.name for module in found)]


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("package", ["sbp2p_keys", "sbp2p_protocol"])
def test_the_lower_layers_load_without_any_io_library(package: str) -> None:
    # multiaddr and protobuf load threading themselves; our own modules may not (import-linter).
    blocked = ["trio", "torch", "numpy", "socket", "asyncio", "ssl", "select", "selectors"]
    done = _python(_BLOCK.format(blocked=blocked, modules=_modules(package)))
    assert done.returncode == 0, done.stderr


def test_importing_sbp2p_loads_neither_torch_nor_numpy() -> None:
    code = "import sbp2p, sys; sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    assert _python(code).returncode == 0


_ON_USE = (
    *("sbp2p.merge.", "sbp2p.plugins.", "sbp2p.integrations."),
    *("sbp2p.namespace.merging", "sbp2p.cli.merge_job", "sbp2p.cli.merge_run"),
)
"""Modules that compute with a framework: loaded when they are used, by those around them."""


def test_the_runtime_loads_without_torch_and_numpy() -> None:
    modules = [
        name
        for name in _modules("sbp2p")
        if not name.endswith("__main__") and not name.startswith(_ON_USE)
    ]
    done = _python(_BLOCK.format(blocked=["torch", "numpy", "safetensors"], modules=modules))
    assert done.returncode == 0, done.stderr
