"""Every snippet of docs/library.md runs, between two real nodes, in the order of the text."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import pytest
import trio

import sbp2p
from sbp2p_keys.identity import PrivateKey

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "library.md"
LOOPBACK = "/ip4/127.0.0.1/tcp/0"


def snippets() -> Iterator[tuple[int, str]]:
    """Yield the line number in the guide and the text of each Python block."""
    text = GUIDE.read_text(encoding="utf-8")
    for match in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, match.start(1)), match.group(1)


def is_program(snippet: str) -> bool:
    return "trio.run(" in snippet


def compiled(line: int, snippet: str) -> CodeType:
    """Compile a block as if its lines were those of the guide, so that tracebacks point there."""
    source = "\n" * line + snippet
    code = compile(source, str(GUIDE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(code, CodeType)
    return code


def write_model(folder: Path, salt: int) -> None:
    """Write a checkpoint: two layers over 64 KiB, one small tensor, a config, a tokenizer."""
    folder.mkdir()
    shapes = {
        "encoder.layer.0.weight": (256, 256),
        "encoder.layer.1.weight": (256, 256),
        "head.bias": (10,),
    }
    header: dict[str, Any] = {}
    offset = 0
    for name, shape in shapes.items():
        size = 4
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    encoded = json.dumps(header).encode()
    data = bytes(index * salt % 251 for index in range(offset))
    (folder / "model.safetensors").write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    (folder / "config.json").write_text("{}\n")
    (folder / "vocab.txt").write_text("hello\nworld\n")


def files_of(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a checkpoint in it, and a home of its own for the snippets' nodes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SBP2P_HOME", str(tmp_path / "home"))
    write_model(tmp_path / "my-model", 7)
    return tmp_path


@pytest.mark.e2e
def test_whole_programs_run_by_themselves(workplace: Path) -> None:
    programs = [snippet for _, snippet in snippets() if is_program(snippet)]
    assert programs
    paths = [str(ROOT), str(ROOT / "protocol"), str(ROOT / "keys")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    for program in programs:
        command = [sys.executable, "-W", "error", "-c", program]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, cwd=workplace
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("sbp2p:b"), done.stdout


async def test_the_other_snippets_run_one_after_the_other(workplace: Path) -> None:
    write_model(workplace / "original", 11)
    original = files_of(workplace / "original")
    names: dict[str, Any] = {"trio": trio, "sbp2p": sbp2p}  # what the whole program imports
    async with sbp2p.Node(home=workplace / "publisher", listen=[LOOPBACK]) as publisher:
        version = await publisher.publish("original", name="my-model")
        names["link"] = version.link(publisher.addresses)
        names["cid"] = version.cid
        names["publisher"] = publisher.publisher
        names["address"] = publisher.addresses[0].text
        names["friend"] = PrivateKey.from_seed(bytes(32)).peer_id
        names["stolen"] = PrivateKey.from_seed(bytes([1]) * 32).peer_id
        for line, snippet in snippets():
            if not is_program(snippet):
                result = eval(compiled(line, snippet), names)  # noqa: S307  (that is the test)
                if inspect.iscoroutine(result):
                    await result
    assert files_of(workplace / "copy") == original
    assert files_of(workplace / "newest") == original
    assert names["layer"].keys() == {"encoder.layer.0.weight"}
    assert not (workplace / "configs" / "config.json").exists()  # removed again
    assert not (workplace / "nowhere" / "config.json").exists()
