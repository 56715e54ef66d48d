"""`sbp2p id`: who this node is."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from typer import Option

from .console import Settings
from .invocation import Invocation
from .options import Home, Json, Quiet, Verbose  # noqa: TC001  (typer evaluates annotations)

if TYPE_CHECKING:
    from sbp2p.node.home import Home as NodeHome
    from sbp2p_keys.identity import PrivateKey

    from .console import Console


def command(
    passphrase: Annotated[
        bool,
        Option(
            "--passphrase",
            help="Protect the key with a passphrase: $SBP2P_PASSPHRASE, or asked for.",
        ),
    ] = False,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Invocation:
    """Show this node's peer id, key file and home; make them at first use."""
    return Invocation(Settings(home, json, quiet, verbose), partial(_run, protect=passphrase))


def _run(console: Console, *, protect: bool) -> int:
    from sbp2p.node.home import Home as NodeHome

    from .session import unlocked

    home = NodeHome(console.home)
    is_new = not home.key_path.exists()
    identity = _protect(console, home) if protect else unlocked(console, home.identity)
    encrypted = b"ENCRYPTED" in home.key_path.read_bytes()
    console.event(
        "id",
        peer=str(identity.peer_id),
        key_file=str(home.key_path),
        home=str(home.path),
        encrypted=encrypted,
        created=is_new,
    )
    if is_new:
        console.note("made a new identity")
    protection = "protected by a passphrase" if encrypted else "no passphrase"
    console.result(f"peer id   {identity.peer_id}")
    console.result(f"key file  {home.key_path} ({protection})")
    console.result(f"home      {home.path}")
    return 0


def _protect(console: Console, home: NodeHome) -> PrivateKey:
    """Return the identity; from now on its file needs the passphrase."""
    from sbp2p.errors import TrustError
    from sbp2p_keys.errors import KeysError
    from sbp2p_keys.keyfile import save_private_key

    passphrase = _new_passphrase(console)
    if not home.key_path.exists():
        return home.identity(passphrase)
    try:
        identity = home.identity()
    except TrustError:
        return home.identity(passphrase)  # it is protected already; or says what is wrong
    try:
        save_private_key(home.key_path, identity, passphrase, overwrite=True)
    except KeysError as error:
        raise TrustError(str(error)) from error
    return identity


def _new_passphrase(console: Console) -> bytes:
    from sbp2p.errors import ConfigError

    from .session import PASSPHRASE_VARIABLE, given_passphrase

    passphrase = given_passphrase()
    if passphrase is None and console.can_ask:
        passphrase = console.ask_passphrase("passphrase for the key")
        if passphrase != console.ask_passphrase("the same again"):
            raise ConfigError("the two passphrases differ", hint="run it again")
    if not passphrase:
        raise ConfigError(
            "no passphrase was given",
            hint=f"set {PASSPHRASE_VARIABLE}, or run it on a terminal and type one",
        )
    return passphrase
