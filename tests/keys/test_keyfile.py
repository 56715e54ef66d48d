from __future__ import annotations

import base64
import errno
import os
import shutil
import socket
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_keys import errors
from sbp2p_keys.errors import FileError, ForeignKeyFileError
from sbp2p_keys.identity import PrivateKey
from sbp2p_keys.keyfile import load_private_key, save_private_key
from sbp2p_keys.limits import KEY_FILE_MAX, KEY_ROUNDS_MAX
from tests.keys.own_vectors import load_own_vectors

if TYPE_CHECKING:
    from collections.abc import Callable

VECTOR = load_own_vectors("key_file")
KEY = PrivateKey.from_seed(bytes.fromhex(VECTOR["seed"]))
OTHER = PrivateKey.from_seed(bytes(32))
PASSPHRASE = VECTOR["passphrase"].encode()
PLAIN = VECTOR["plain"].encode()
ENCRYPTED = VECTOR["encrypted"].encode()


def put(path: Path, data: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(data)
    path.chmod(mode)
    return path


# -- round trips -----------------------------------------------------------------------------------


def test_vectors(tmp_path: Path) -> None:
    assert load_private_key(put(tmp_path / "plain.pem", PLAIN)) == KEY
    assert load_private_key(put(tmp_path / "encrypted.pem", ENCRYPTED), PASSPHRASE) == KEY
    save_private_key(tmp_path / "saved.pem", KEY)
    assert (tmp_path / "saved.pem").read_bytes() == PLAIN


@pytest.mark.parametrize("passphrase", [None, b"\0\xff" * 50])
def test_save_and_load(tmp_path: Path, passphrase: bytes | None) -> None:
    path = tmp_path / "key.pem"
    save_private_key(str(path), KEY, passphrase)
    loaded = load_private_key(str(path), passphrase)
    assert loaded == KEY
    assert loaded.to_seed() == KEY.to_seed()
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_mode_does_not_depend_on_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        save_private_key(tmp_path / "key.pem", KEY)
    finally:
        os.umask(before)
    assert (tmp_path / "key.pem").stat().st_mode & 0o777 == 0o600


def test_salt_is_fresh(tmp_path: Path) -> None:
    save_private_key(tmp_path / "key.pem", KEY, PASSPHRASE)
    assert (tmp_path / "key.pem").read_bytes() != ENCRYPTED


def test_line_ends_and_space_around_do_not_matter(tmp_path: Path) -> None:
    data = b"\r\n " + PLAIN.replace(b"\n", b"\r\n") + b"\n\n"
    assert load_private_key(put(tmp_path / "key.pem", data)) == KEY


def test_files_of_cryptography_are_read(tmp_path: Path) -> None:
    foreign = ed25519.Ed25519PrivateKey.from_private_bytes(KEY.to_seed())
    data = foreign.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(PASSPHRASE)
    )
    assert load_private_key(put(tmp_path / "key.pem", data), PASSPHRASE) == KEY


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command here")
def test_openssl_reads_what_is_written(tmp_path: Path) -> None:
    save_private_key(tmp_path / "key.pem", KEY, b"pass")
    command = ["openssl", "pkey", "-in", "key.pem", "-passin", "pass:pass", "-outform", "DER"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout.endswith(KEY.to_seed())


# -- the fault table -------------------------------------------------------------------------------


def pkcs8(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, form: PrivateFormat) -> bytes:
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def damaged(data: bytes) -> bytes:
    """Change the length of the inner octet string; PEM and outer DER stay whole."""
    lines = data.splitlines()
    body = base64.b64decode(lines[1]).replace(b"\x04\x22\x04\x20", b"\x04\x22\x04\x21")
    return b"\n".join([lines[0], base64.b64encode(body), lines[2]])


def make_truncated_body(data: bytes) -> bytes:
    """Lose the last line of base64, markers kept."""
    lines = data.splitlines()
    body = b"".join(lines[1:-1])
    return b"\n".join([lines[0], body[: len(body) // 8 * 4], lines[-1]])


EC = ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(65537, 2048)
OPENSSH = ed25519.Ed25519PrivateKey.generate().private_bytes(
    Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
)
PUBLIC = EC.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
EC_ENCRYPTED = EC.private_bytes(
    Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(PASSPHRASE)
)

# contents, passphrase, error, what the message must say
FAULTS: dict[str, tuple[bytes, bytes | None, type[FileError], str]] = {
    "empty": (b"", None, errors.TruncatedKeyFileError, "backup"),
    "no end line": (PLAIN[:-10], None, errors.TruncatedKeyFileError, "backup"),
    "body cut": (make_truncated_body(PLAIN), None, errors.TruncatedKeyFileError, "backup"),
    "encrypted body cut": (
        make_truncated_body(ENCRYPTED),
        PASSPHRASE,
        errors.TruncatedKeyFileError,
        "backup",
    ),
    "damaged": (damaged(PLAIN), None, errors.BadKeyFileError, "backup"),
    "bad base64": (PLAIN.replace(b"MC4", b"M?4"), None, errors.BadKeyFileError, "base64"),
    "two keys": (PLAIN + PLAIN, None, errors.BadKeyFileError, "more than one"),
    "text": (b"my secret key\n", None, errors.BadKeyFileError, "path of the key file"),
    "binary": (bytes(range(256)), None, errors.BadKeyFileError, "path of the key file"),
    "protobuf": (KEY.to_protobuf(), None, errors.BadKeyFileError, "path of the key file"),
    "too long": (PLAIN + b" " * KEY_FILE_MAX, None, errors.BadKeyFileError, "too long"),
    "RSA": (pkcs8(RSA, PrivateFormat.PKCS8), None, errors.ForeignKeyFileError, "RSA"),
    "EC": (pkcs8(EC, PrivateFormat.PKCS8), None, errors.ForeignKeyFileError, "type EC"),
    "encrypted EC": (EC_ENCRYPTED, PASSPHRASE, errors.ForeignKeyFileError, "type EC"),
    "RSA of old": (
        pkcs8(RSA, PrivateFormat.TraditionalOpenSSL),
        None,
        errors.ForeignKeyFileError,
        "RSA PRIVATE KEY.*convert",
    ),
    "OpenSSH": (OPENSSH, None, errors.ForeignKeyFileError, "OPENSSH.*convert"),
    "public key": (PUBLIC, None, errors.ForeignKeyFileError, "PUBLIC KEY"),
    "no passphrase": (ENCRYPTED, None, errors.PassphraseRequiredError, "give its passphrase"),
    "wrong passphrase": (ENCRYPTED, b"correct hors", errors.WrongPassphraseError, "try again"),
    "empty passphrase": (ENCRYPTED, b"", errors.WrongPassphraseError, "try again"),
    "idle passphrase": (PLAIN, PASSPHRASE, errors.PassphraseUnusedError, "without a passphrase"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_the_contents(tmp_path: Path, name: str) -> None:
    data, passphrase, error, advice = FAULTS[name]
    path = put(tmp_path / "key.pem", data)
    check_fault(lambda: load_private_key(path, passphrase), path, error, advice)


def check_fault(
    action: Callable[[], object], path: Path, error: type[FileError], advice: str
) -> None:
    """The error is exactly that one; its one line names the path and says what to do."""
    with pytest.raises(error, match=advice) as caught:
        action()
    assert caught.type is error
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert KEY.to_seed().hex() not in str(caught.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o610, 0o777])
def test_permissions(tmp_path: Path, mode: int) -> None:
    path = put(tmp_path / "my key.pem", PLAIN, mode)
    check_fault(
        lambda: load_private_key(path),
        path,
        errors.FilePermissionsError,
        f"mode {mode:04o}.*chmod 600 '",
    )


def test_stricter_permissions_are_fine(tmp_path: Path) -> None:
    assert load_private_key(put(tmp_path / "key.pem", PLAIN, 0o400)) == KEY


def test_missing_directory_symlink_pipe_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "missing.pem"
    check_fault(
        lambda: load_private_key(missing), missing, errors.FileMissingError, "create it first"
    )
    check_fault(lambda: load_private_key(tmp_path), tmp_path, errors.NotAFileError, "directory")
    link = tmp_path / "link.pem"
    link.symlink_to(put(tmp_path / "key.pem", PLAIN))
    check_fault(lambda: load_private_key(link), link, errors.SymlinkError, "file itself")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # opening one for reading would wait for a writer
    check_fault(lambda: load_private_key(pipe), pipe, errors.NotAFileError, "regular")
    monkeypatch.chdir(tmp_path)  # socket names are short, temporary folders are not
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        path = Path("socket")
        check_fault(lambda: load_private_key(path), path, errors.NotAFileError, "regular")


def test_below_a_file(tmp_path: Path) -> None:
    path = put(tmp_path / "key.pem", PLAIN) / "deeper"
    check_fault(lambda: load_private_key(path), path, errors.FileAccessError, "Not a directory")
    check_fault(
        lambda: save_private_key(path, KEY), path, errors.FileAccessError, "Not a directory"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable(tmp_path: Path) -> None:
    path = put(tmp_path / "key.pem", PLAIN, 0o000)
    check_fault(lambda: load_private_key(path), path, errors.FileAccessError, "owner")


@pytest.mark.parametrize(("data", "passphrase"), [(PLAIN, None), (ENCRYPTED, PASSPHRASE)])
def test_every_shorter_file_is_called_truncated(
    tmp_path: Path, data: bytes, passphrase: bytes | None
) -> None:
    path = tmp_path / "key.pem"
    for cut in range(len(data) - 1):  # without the last line end it is complete
        put(path, data[:cut])
        with pytest.raises(errors.TruncatedKeyFileError):
            load_private_key(path, passphrase)


@given(st.data())
def test_damage_raises_only_named_errors(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    contents = bytearray(PLAIN)
    for _ in range(data.draw(st.integers(1, 3))):
        contents[data.draw(st.integers(0, len(contents) - 1))] = data.draw(st.integers(0, 255))
    path = put(tmp_path_factory.getbasetemp() / "damaged.pem", bytes(contents))
    try:
        load_private_key(path)
    except FileError:
        return


@given(st.binary(max_size=200))
def test_garbage_raises_only_named_errors(
    tmp_path_factory: pytest.TempPathFactory, body: bytes
) -> None:
    contents = b"-----BEGIN PRIVATE KEY-----\n" + body + b"\n-----END PRIVATE KEY-----\n"
    path = put(tmp_path_factory.getbasetemp() / "garbage.pem", contents)
    with pytest.raises(FileError):
        load_private_key(path)


# -- writing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "folder", "link", "dangling link"])
def test_never_overwritten_silently(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "key.pem"
    target = tmp_path / "target"
    match kind:
        case "file":
            put(path, b"precious")
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to(put(target, b"precious"))
        case "dangling link":
            path.symlink_to(target)
    before = sorted(tmp_path.iterdir())
    check_fault(
        lambda: save_private_key(path, KEY), path, errors.FileExistsAlreadyError, "move it away"
    )
    assert sorted(tmp_path.iterdir()) == before
    if kind in ("file", "link"):
        assert path.read_bytes() == b"precious"


def test_overwrite_when_asked(tmp_path: Path) -> None:
    path = put(tmp_path / "key.pem", b"old", 0o644)
    save_private_key(path, KEY, overwrite=True)
    assert load_private_key(path) == KEY
    assert list(tmp_path.iterdir()) == [path]


def test_overwrite_replaces_a_link_and_not_its_target(tmp_path: Path) -> None:
    target = put(tmp_path / "target", b"precious")
    path = tmp_path / "key.pem"
    path.symlink_to(target)
    save_private_key(path, KEY, overwrite=True)
    assert target.read_bytes() == b"precious"
    assert load_private_key(path) == KEY


def test_overwrite_does_not_replace_a_folder(tmp_path: Path) -> None:
    for folder in (tmp_path, Path("/")):
        save = partial(save_private_key, folder, KEY, overwrite=True)
        check_fault(save, folder, errors.NotAFileError, "directory")


def test_empty_passphrase_is_the_callers_mistake(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="protects nothing"):
        save_private_key(tmp_path / "key.pem", KEY, b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("call", "overwrite"),
    [
        ("write", False),
        ("write", True),
        ("fsync", False),
        ("fsync", True),
        ("link", False),
        ("replace", True),
    ],
)
def test_failing_disk_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, overwrite: bool
) -> None:
    path = tmp_path / "key.pem"
    if overwrite:
        save_private_key(path, OTHER)

    def fail(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    check_fault(
        lambda: save_private_key(path, KEY, overwrite=overwrite),
        path,
        errors.FileAccessError,
        "No space left.*free space",
    )
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == ([path] if overwrite else [])
    if overwrite:
        assert load_private_key(path) == OTHER


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:7]))
    save_private_key(tmp_path / "key.pem", KEY)
    assert (tmp_path / "key.pem").read_bytes() == PLAIN


@pytest.mark.parametrize("taken", [False, True])
def test_file_system_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "key.pem"
    if taken:
        put(path, b"precious")
        with pytest.raises(errors.FileExistsAlreadyError):
            save_private_key(path, KEY)
        assert path.read_bytes() == b"precious"
    else:
        save_private_key(path, KEY)
        assert load_private_key(path) == KEY
    assert list(tmp_path.iterdir()) == [path]


# -- what a file costs to open ---------------------------------------------------------------------


def encrypted(rounds: int, derivation: str = "06092a864886f70d01050c") -> bytes:
    """Return an encrypted file that says so many rounds."""
    number = rounds.to_bytes(rounds.bit_length() // 8 + 1, "big")

    def value(tag: int, content: bytes) -> bytes:
        size = len(content)
        return bytes([tag, size] if size < 0x80 else [tag, 0x81, size]) + content

    parameters = value(0x30, value(4, bytes(16)) + value(2, number))
    derived = value(0x30, bytes.fromhex(derivation) + parameters)
    cipher = value(0x30, bytes.fromhex("060960864801650304012a") + value(4, bytes(16)))
    scheme = value(0x30, bytes.fromhex("06092a864886f70d01050d") + value(0x30, derived + cipher))
    body = value(0x30, scheme + value(4, bytes(64)))
    return (
        b"-----BEGIN ENCRYPTED PRIVATE KEY-----\n"
        + base64.b64encode(body)
        + b"\n-----END ENCRYPTED PRIVATE KEY-----\n"
    )


@pytest.mark.parametrize("rounds", [KEY_ROUNDS_MAX + 1, 2**31 - 1, 2**63, 2**200])
def test_a_file_that_takes_too_long_is_refused_untried(tmp_path: Path, rounds: int) -> None:
    with pytest.raises(ForeignKeyFileError, match=f"{rounds} rounds"):
        load_private_key(put(tmp_path / "key.pem", encrypted(rounds)), PASSPHRASE)


def test_other_ways_to_derive_a_key_are_refused_untried(tmp_path: Path) -> None:
    scrypt = "06092b06010401da47040b"
    with pytest.raises(ForeignKeyFileError, match="not supported here"):
        load_private_key(put(tmp_path / "key.pem", encrypted(1, scrypt)), PASSPHRASE)


@given(st.binary(max_size=80), st.integers(0, 80))
def test_damage_to_an_encrypted_file_is_named(noise: bytes, at: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lines = encrypted(1).splitlines()
        body = bytearray(base64.b64decode(lines[1]))
        body[at : at + len(noise)] = noise[: len(body) - at]
        text = b"\n".join([lines[0], base64.b64encode(body), lines[2]])
        with pytest.raises(FileError):
            load_private_key(put(Path(folder) / "key.pem", text), PASSPHRASE)
