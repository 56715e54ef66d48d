"""The commands and their options.

Theory of operation: typer only parses. A command's function returns an Invocation and does nothing,
so that no exception of a command passes through typer, and whatever is heavy is imported after the
arguments were found to be right.

A command that is named is built alone, as a program of its own. That saves the others, and more:
typer 0.29 imports pydantic, a tenth of a second, for the options of a program around a command,
even when the command is asked for `--help` only. Options that every command takes may stand before
the command too; they are moved behind it.
"""

from __future__ import annotations

import io
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from .console import OUTPUT_CLOSED, Console, Settings, discard_stdout
from .failure import Failure
from .signals import Interrupts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .invocation import Invocation

USAGE: Final = 2
OUTPUT_FAILED: Final = 6
_HELP_NAMES: Final = ["--help", "-h"]
_HELP_OPTIONS: Final = {"help_option_names": _HELP_NAMES}
_FLAGS: Final = frozenset({"--json", "--quiet", "-q", "--verbose", "-v"})

COMMANDS: Final = (
    *("id", "publish", "seed", "get", "follow", "inspect", "verify", "ls", "rm"),
    *("merge", "pin", "unpin", "gc", "bench", "topology", "audit"),
    *("doctor", "trust", "swarm"),
)
"""Each is the function `command` of the module of that name, in the order that `--help` shows;
groups come last there."""

GROUPS: Final = {
    "trust": ("list", "pin", "unpin", "revoke", "policy"),
    "swarm": ("show", "create", "invite", "revoke", "join", "leave"),
}
"""Commands that are several, in the `COMMANDS` of their module; the first is meant if none is."""


def build(names: Sequence[str]) -> typer.Typer:
    """Return a program with these commands, importing no others; one alone is the program."""
    app = _program("Peer-to-peer sharing of signed, verified model weights.")
    if len(names) > 1:
        app.callback()(_version)
    for name in names:
        if name in GROUPS:
            app.add_typer(build_group(name, GROUPS[name]), name=name)
        else:
            _add(app, name, import_module(f".{name}", __package__).command)
    return app


def build_group(group: str, names: Sequence[str]) -> typer.Typer:
    """Return a program with these commands of a group; one alone is the program."""
    module = import_module(f".{group}", __package__)
    app = _program(module.HELP)
    for name in names:
        _add(app, name, module.COMMANDS[name])
    return app


def _program(about: str) -> typer.Typer:
    return typer.Typer(
        name="sbp2p",
        help=about,
        epilog="Every command takes --home DIR, --json, --quiet and --verbose.",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=_HELP_OPTIONS,
    )


def _add(app: typer.Typer, name: str, command: Callable[..., Invocation]) -> None:
    app.command(name, context_settings=_HELP_OPTIONS)(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        from sbp2p import __version__

        typer.echo(f"sbp2p {__version__}")
        raise typer.Exit


def _version(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show it.")
    ] = False,
) -> None:
    """Take what stands before the command."""


def arrange(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with those options moved behind the command that every command takes."""
    words = list(arguments)
    moved: list[str] = []
    while words:
        if words[0] in _FLAGS or words[0].startswith("--home="):
            moved.append(words.pop(0))
        elif words[0] == "--home" and len(words) > 1:
            moved += words[:2]
            del words[:2]
        else:
            break
    return [*words[:1], *moved, *words[1:]]


def run(arguments: Sequence[str]) -> int:
    """Parse and run a command line; return the exit code."""
    name, app, words = _choose(arrange(arguments) or ["--help"])
    try:
        parsed = app(words, prog_name=name, standalone_mode=False)
    except typer.TyperException as error:
        return _refuse(error, "--json" in arguments)
    except SystemExit:  # what typer makes of a reader that went away in mid-help
        return OUTPUT_CLOSED
    except OSError as error:  # --help and --version do nothing but write
        return _fail_to_write(error)
    if isinstance(parsed, int):  # --help or --version: they have said all
        return parsed
    from .invocation import execute

    return execute(parsed)


def _choose(words: list[str]) -> tuple[str, typer.Typer, list[str]]:
    """Return the program for a command line: its name, itself, and the words that it is to read."""
    if words[0] not in COMMANDS:
        return "sbp2p", build(COMMANDS), words
    command, words = words[0], words[1:]
    name = f"sbp2p {command}"
    if command not in GROUPS:
        return name, build([command]), words
    words = arrange(words)
    if not words or (words[0].startswith("-") and words[0] not in _HELP_NAMES):
        words = [GROUPS[command][0], *words]
    if words[0] not in GROUPS[command]:
        return name, build_group(command, GROUPS[command]), words
    return f"{name} {words[0]}", build_group(command, words[:1]), words[1:]


def _refuse(error: typer.TyperException, json: bool) -> int:
    """Report a command line that cannot be understood."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "sbp2p"
    message = error.format_message().rstrip(".")
    console = Console(Settings(json=json), Interrupts())
    console.fail(Failure(message[:1].lower() + message[1:], f"see `{path} --help`", USAGE))
    return USAGE


def _fail_to_write(error: OSError) -> int:
    """Report that the help has no place to go to."""
    discard_stdout()
    reason = error.strerror or str(error)
    Console(Settings(), Interrupts()).fail(Failure(f"stdout: {reason}", "", OUTPUT_FAILED))
    return OUTPUT_FAILED


def main() -> NoReturn:
    """Read and run the arguments of this process, and end it with the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a name that the terminal's encoding does not have is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))
