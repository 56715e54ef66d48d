"""The documents keep up with the code: links, names of files and modules, numbers, words.

A document that names something which is gone is worse than none. What can be checked without
understanding it is checked here; the snippets of docs/library.md are run in tests/e2e.
"""

from __future__ import annotations

import importlib
import os
import re
import unicodedata
from functools import cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[1]
_PRUNED = {"node_modules", "__pycache__", "dist", "build"}
_SEARCHED = (
    "", "docs", "docs/decisions", "sbp2p", "protocol", "protocol/sbp2p_protocol", "keys",
    "keys/sbp2p_keys", "tests", "tests/fuzz",
)  # fmt: skip
"""Where a file that a document names may lie, besides beside the document."""

_FOREIGN = {
    "allow_patterns", "trust_remote_code", "get_peer_cert", "data_offsets",
    "webtransport_certhashes", "sbp2p.protocol", "Noise_XX_25519_AESGCM_SHA256",
    "Noise_XX_25519_ChaChaPoly_SHA256",
}  # fmt: skip
"""Names in documents that are other people's, or of things that were decided against."""

_SYNONYMS = {
    r"peer[ -]?ID\b|\bpeerID\b|\bPeer ID\b": "peer id",
    r"\bBlake-?3\b|\bBLAKE-3\b": "BLAKE3",
    r"\bPytorch\b|\bpytorch\b": "PyTorch",
    r"\bHuggingFace\b|\bHuggingface\b": "Hugging Face",
    r"\bYamux\b": "yamux",
    r"\bTrio\b": "trio",
    r"\bLibp2p\b|\bLibP2P\b|\blibP2P\b": "libp2p",
    r"\bSafetensors\b|\bsafe tensors\b": "safetensors",
    r"\bmulti-?addresses\b|\bmulti-address\b": "address, or multiaddr",
    r"\bwhite-?list|\bblack-?list": "allow list, deny list",
    r"\bhand shake|\bhand-shake": "handshake",
    r"\bmeta-?data block": "loose block",
    r"\btensor-index\b": "tensor index",
    r"\bblock-table\b": "block table",
    r"\btorrent hash\b|\binfo hash\b": "root",
}
"""Spellings that documents do not use, and the one they do (docs/glossary.md)."""


def _markdown() -> list[Path]:
    found = []
    for folder, names, files in os.walk(ROOT):
        names[:] = [each for each in names if each not in _PRUNED and not each.startswith(".")]
        found += [Path(folder, name) for name in files if name.endswith(".md")]
    return sorted(found)


DOCUMENTS = _markdown()
RECORDS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
each_document = pytest.mark.parametrize(
    "path", DOCUMENTS, ids=[str(path.relative_to(ROOT)) for path in DOCUMENTS]
)


@cache
def _text(path: Path) -> str:
    return path.read_bytes().decode()


@cache
def _prose(path: Path) -> str:
    """Return a document without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", _text(path), flags=re.MULTILINE | re.DOTALL)


def _code_spans(path: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", _prose(path))


@cache
def _anchors(path: Path) -> frozenset[str]:
    """Return the fragments that headings of a document have where it is rendered."""
    titles = re.findall(r"^#{1,6} +(.+?) *$", _prose(path), flags=re.MULTILINE)
    slugs = (re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)
    return frozenset(slugs)


def _links(path: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "``", _prose(path))
    return re.findall(r"\]\(([^()\s]+)\)", text)


@each_document
def test_relative_links_resolve(path: Path) -> None:
    broken = []
    for target in _links(path):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, fragment = target.partition("#")
        file = (path.parent / unquote(name)).resolve() if name else path
        outside = file != ROOT and ROOT not in file.parents
        if outside or not file.exists() or (fragment and fragment not in _anchors(file)):
            broken.append(target)
    assert not broken


@each_document
def test_named_files_exist(path: Path) -> None:
    missing = []
    for span in _code_spans(path):
        name = span.strip()
        if "NNNN" not in name and re.fullmatch(
            r"(?!/)[\w./*-]+(\.(py|md|sh|toml|mjs|proto)|/vectors/\w+\.json)", name
        ):
            same_subject = ROOT / "sbp2p" / path.stem  # docs/store.md is about sbp2p/store
            folders = (path.parent, same_subject, *(ROOT / each for each in _SEARCHED))
            if not any(_exists(folder, name) for folder in folders):
                missing.append(name)
    assert not missing


def _exists(folder: Path, name: str) -> bool:
    return any(folder.glob(name)) if "*" in name else (folder / name).exists()


@each_document
def test_named_folders_exist(path: Path) -> None:
    roots = {each.name for each in ROOT.iterdir() if each.is_dir()}
    named = {name for name in _code_spans(path) if re.fullmatch(r"[\w-]+(/[\w-]+)*/?", name)}
    missing = [
        name
        for name in named
        if "/" in name
        and name.partition("/")[0] in roots
        and not any((ROOT / each / name).exists() for each in _SEARCHED)
        and not any((ROOT / each / f"{name}.py").exists() for each in _SEARCHED)
    ]
    assert not missing


@each_document
def test_named_modules_and_attributes_exist(path: Path) -> None:
    pattern = r"\b(sbp2p(?:_keys|_protocol)?(?:\.[A-Za-z_]\w*)+)"
    named = {name for span in _code_spans(path) for name in re.findall(pattern, span)}
    named = {name for name in named if not name.endswith((".md", ".py", ".toml", ".part"))}
    missing = [name for name in sorted(named - _FOREIGN) if not _importable(name)]
    assert not missing


def _importable(name: str) -> bool:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        value: object = found
        for attribute in parts[count:]:
            if not hasattr(value, attribute):
                return False
            value = getattr(value, attribute)
        return True
    return False


@each_document
def test_commands_that_run_modules_name_modules(path: Path) -> None:
    named = re.findall(r"python -m ((?:benchmarks|sbp2p|scripts)[\w.]*)", _text(path))
    missing = [
        name
        for name in named
        if name != "benchmarks.NAME"
        and not (ROOT / Path(*name.split("."))).with_suffix(".py").is_file()
        and not (ROOT / Path(*name.split("."))).is_dir()
    ]
    assert not missing


@each_document
def test_make_targets_exist(path: Path) -> None:
    makefile = _text(ROOT / "Makefile")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    fenced = "\n".join(re.findall(r"^```.*?^```$", _text(path), re.MULTILINE | re.DOTALL))
    named = re.findall(r"^make ([a-z-]+)", fenced, flags=re.MULTILINE)
    named += re.findall(r"`make ([a-z-]+)", _prose(path))
    assert set(named) <= targets


@cache
def _words_of_the_code() -> frozenset[str]:
    words: set[str] = set()
    for folder in ("sbp2p", "protocol", "keys", "tests", "benchmarks", "scripts", "examples"):
        for suffix in ("py", "proto", "mjs", "json"):
            for path in (ROOT / folder).rglob(f"*.{suffix}"):
                if "node_modules" not in path.parts and path != Path(__file__):
                    words.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    words.update(re.findall(r"\w+", _text(ROOT / "pyproject.toml") + _text(ROOT / "Makefile")))
    return frozenset(words)


@each_document
def test_identifiers_in_documents_are_the_codes(path: Path) -> None:
    if path.parent.name in ("protocol", "keys"):
        return  # a specification names fields as the wire does, whatever the code calls them
    spans = (span.strip() for span in _code_spans(path))
    named = {span for span in spans if re.fullmatch(r"_?[A-Za-z]\w*_\w+", span)}
    assert not named - _words_of_the_code() - _FOREIGN


@each_document
def test_no_path_of_somebodys_machine(path: Path) -> None:
    found = re.findall(r"(?<![\w.~/:)])/(?:home|root|Users|work|tmp|mnt|opt)/\S*", _text(path))
    assert not [each for each in found if "/p2p/" not in each]
    assert "file://" not in _text(path)


@each_document
def test_text_is_clean_utf8(path: Path) -> None:
    data = path.read_bytes()
    text = data.decode()  # raises for anything else
    assert not data.startswith(b"\xef\xbb\xbf")
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert "\r" not in text
    assert "\t" not in text
    lines = enumerate(text.split("\n"), 1)
    assert not [number for number, line in lines if line != line.rstrip()]
    invisible = {
        c for c in text if unicodedata.category(c) in ("Cf", "Zs", "Cc") and c not in " \n"
    }
    assert not invisible
    assert unicodedata.is_normalized("NFC", text)


@each_document
def test_one_spelling_for_each_idea(path: Path) -> None:
    text = re.sub(r"`[^`\n]*`|\]\([^)]*\)", "``", _prose(path))
    wrong = {
        match.group(0): right
        for pattern, right in _SYNONYMS.items()
        for match in re.finditer(pattern, text)
    }
    assert not wrong


def test_glossary_is_in_order_and_says_everything_once() -> None:
    text = _text(ROOT / "docs" / "glossary.md")
    terms = re.findall(r"^\| ([^|]+?) \| [^|]+ \|$", text, flags=re.MULTILINE)[1:]
    keys = [term.lower() for term in terms]
    assert len(terms) > 30
    assert [pair for pair in pairwise(keys) if pair[0] >= pair[1]] == []


def test_decision_records_are_numbered_without_gaps() -> None:
    names = [path.name for path in RECORDS]
    assert all(re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", name) for name in names)
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))


@pytest.mark.parametrize("path", RECORDS, ids=[path.stem for path in RECORDS])
def test_decision_records_have_their_parts(path: Path) -> None:
    text = _text(path)
    assert text.startswith(f"# {path.name[:4]}: ")
    assert "**Decided" in text


def test_decisions_are_referred_to_by_numbers_that_exist() -> None:
    numbers = {path.name[:4] for path in RECORDS}
    named: dict[str, str] = {}
    sources = [ROOT / each for each in ("sbp2p", "protocol", "keys")]
    code = [path for folder in sources for path in folder.rglob("*.py")]
    for path in [*DOCUMENTS, *code]:
        for number in re.findall(r"decisions?[ /](\d{4})\b", path.read_text(encoding="utf-8")):
            named[number] = str(path.relative_to(ROOT))
    assert not {number: where for number, where in named.items() if number not in numbers}


def test_the_index_of_docs_names_every_document() -> None:
    index = ROOT / "docs" / "README.md"
    named = {(index.parent / target.partition("#")[0]).resolve() for target in _links(index)}
    expected = set((ROOT / "docs").rglob("*.md")) - {index}
    expected |= set((ROOT / "protocol").glob("*.md")) | {ROOT / "keys" / "README.md"}
    expected |= {ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "README.md"}
    assert not {str(path.relative_to(ROOT)) for path in expected - named}


@pytest.mark.parametrize(
    ("readme", "package"),
    [("protocol/README.md", "protocol/sbp2p_protocol"), ("keys/README.md", "keys/sbp2p_keys")],
)
def test_a_layer_lists_all_of_its_modules(readme: str, package: str) -> None:
    rows = re.findall(r"^\| (`[^|]+`) \|", _text(ROOT / readme), flags=re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+\.py|\w+/)`", row)]
    modules = {path.name for path in (ROOT / package).glob("*.py")} - {"__init__.py"}
    folders = {f"{path.parent.name}/" for path in (ROOT / package).glob("*/__init__.py")}
    assert sorted(listed) == sorted(modules | folders), "each once"


def test_bounds_that_the_threat_model_names_are_bounds_or_knobs() -> None:
    text = _text(ROOT / "docs" / "threat-model.md")
    section = text.partition("\n## 6. Bounds\n")[2].partition("\n## 7.")[0]
    named = set(re.findall(r"`([A-Za-z_]+)`", section))
    assert len(named) > 30
    sources = ("protocol/sbp2p_protocol/limits.py", "keys/sbp2p_keys/limits.py", "sbp2p/config.py")
    code = "\n".join(_text(ROOT / source) for source in sources)
    there = set(re.findall(r"^ *([A-Za-z_]+): ", code, flags=re.MULTILINE))
    assert not named - there
