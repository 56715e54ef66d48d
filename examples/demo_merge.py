"""Two trained plugins, each of which knows half of the digits, merged over the swarm.

    python -m examples.demo_merge

Two processes, a node each. One has only seen the digits 0 to 4, the other only 5 to 9. They meet in
a namespace, publish once, merge once, and both know all ten. The exit status is 0 only if the
merged model reads more of the test's pictures than either did, and both hold the same bits.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from examples.processes import Family

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.processes import Child, Event

_NODE: Final = "examples.demo_merge_node"
_LIMIT_S: Final = 90.0


def run_demo(say: Callable[[str], None] = print) -> bool:
    """Run it; return whether the merged model is better than both, and the same on both nodes.

    Raises:
        SystemExit: a process did not get through; says why.
    """
    until = time.monotonic() + _LIMIT_S
    with tempfile.TemporaryDirectory(prefix="sbp2p-demo-") as folder:
        with Family(Path(folder)) as family:
            first = _start(family, folder, "alice", [0, 1, 2, 3, 4])
            _wait(family, [first], "ready", until)
            address = _told(first, "ready")["address"]
            second = _start(family, folder, "bob", [5, 6, 7, 8, 9], peers=[address])
            _wait(family, [first, second], "done", until)
            return _judge([first, second], say)


def _start(family: Family, folder: str, name: str, labels: list[int], **more: Any) -> Child:
    settings = {"home": f"{folder}/{name}", "name": name, "labels": labels, "limit_s": _LIMIT_S}
    return family.start(name, _NODE, {**settings, "peers": [], **more})


def _wait(family: Family, children: list[Child], kind: str, until: float) -> None:
    for child, event in family.events(until):
        if event["event"] == "died":
            raise SystemExit(f"{child.name} died: {event['why']}")
        if all(each.last(kind) for each in children):
            return
    raise SystemExit(f"not within {_LIMIT_S:.0f} s: {kind}")


def _told(child: Child, kind: str) -> Event:
    event = child.last(kind)
    if event is None:
        raise SystemExit(f"{child.name} did not get to {kind}: {child.complaint()}")
    return event


def _judge(children: list[Child], say: Callable[[str], None]) -> bool:
    for child in children:
        before = _told(child, "trained")
        labels = before["labels"]
        say(
            f"  {child.name} was trained on the digits {labels[0]} to {labels[-1]} alone: "
            f"{before['accuracy']:.1f} % of all ten read right"
        )
    for child in children:
        after = _told(child, "done")
        say(
            f"  {child.name} after one merge over the swarm: {after['accuracy']:.1f} %, "
            f"{after['received'] / 1e3:.0f} kB received, weights {after['digest'][:16]}"
        )
    done = [_told(child, "done") for child in children]
    best = max(_told(child, "trained")["accuracy"] for child in children)
    same = len({event["digest"] for event in done}) == 1
    say(f"  merged accuracy {done[0]['accuracy']:.1f} %, the better of the two alone {best:.1f} %")
    say(f"  {'the same weights on both, bit for bit' if same else 'DIFFERENT weights'}")
    return same and min(event["accuracy"] for event in done) > best


def main() -> int:
    """Run the demo; exit with 0 only if it held."""
    return 0 if run_demo(lambda text: print(text, flush=True)) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # the children have ended
        sys.exit(130)
