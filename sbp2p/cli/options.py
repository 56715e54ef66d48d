"""The options that every command takes, and those that several take.

`--home`, `--json`, `--quiet` and `--verbose` may stand before the command as well as after it: see
`app.arrange`. All values are text or numbers here; what they mean is found out when a command runs,
so that a wrong address is explained by the code that knows addresses.
"""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

Home = Annotated[
    str | None,
    Option(
        "--home",
        metavar="DIR",
        help="The node's key, trust store and index. Default: $SBP2P_HOME, "
        "or the user's data directory.",
        show_default=False,
    ),
]
Json = Annotated[bool, Option("--json", help="One JSON object a line on stdout, for scripts.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Only results and errors.")]
Verbose = Annotated[
    bool, Option("--verbose", "-v", help="Log what happens, with tracebacks of bugs.")
]

Peers = Annotated[
    list[str] | None,
    Option(
        "--peer",
        metavar="ADDR",
        help="Also ask the peer at this address (multiaddr ending in /p2p/ID). Repeatable.",
        show_default=False,
    ),
]
Bootstrap = Annotated[
    list[str] | None,
    Option(
        "--bootstrap",
        metavar="ADDR",
        help="Find others through the peer at this address (multiaddr ending in /p2p/ID). "
        "Repeatable; $SBP2P_BOOTSTRAP adds more.",
        show_default=False,
    ),
]
NoLan = Annotated[
    bool,
    Option("--no-lan", help="Neither ask nor answer by multicast on the local network."),
]
Network = Annotated[
    str | None,
    Option(
        "--network",
        metavar="NAME",
        help="The DHT to find peers in. Default: /sbp2p; the public one is /ipfs.",
        show_default=False,
    ),
]
Announce = Annotated[
    str | None,
    Option(
        "--announce",
        metavar="WHAT",
        help="What the DHT is told of: versions (their roots and files), or blocks, every one. "
        "Default: versions.",
        show_default=False,
    ),
]
Listen = Annotated[
    list[str] | None,
    Option(
        "--listen",
        metavar="ADDR",
        help="Listen here (multiaddr). Repeatable. "
        "Default: TCP port 4801 on IPv4 and IPv6, or any free port if that is taken.",
        show_default=False,
    ),
]
UploadLimit = Annotated[
    str | None,
    Option(
        "--upload-limit",
        metavar="RATE",
        help="Send at most this much a second to all peers together, such as 5MB or 40Mbit.",
        show_default=False,
    ),
]
DownloadLimit = Annotated[
    str | None,
    Option(
        "--download-limit",
        metavar="RATE",
        help="Receive at most this much a second.",
        show_default=False,
    ),
]
PeerUploadLimit = Annotated[
    str | None,
    Option(
        "--peer-upload-limit",
        metavar="RATE",
        help="Send at most this much a second to each peer.",
        show_default=False,
    ),
]
Roles = Annotated[
    list[str] | None,
    Option(
        "--role",
        metavar="ROLE",
        help="peer (send and receive), seed (only send), leech (only receive) or offline; "
        "or for a part: PEER/NAME=ROLE, PEER/=ROLE, ROOT=ROLE, PEER=ROLE. Repeatable.",
        show_default=False,
    ),
]
SwarmFile = Annotated[
    str | None,
    Option(
        "--swarm",
        metavar="FILE",
        help="Be in the private swarm of this invitation. "
        "Default: the one that `sbp2p swarm join` has joined, else the public network.",
        show_default=False,
    ),
]
ModelName = Annotated[
    str | None,
    Option(
        "--name",
        metavar="NAME",
        help="The model's name. Default: the name of the file or directory.",
        show_default=False,
    ),
]
Reference = Annotated[
    str,
    Argument(
        metavar="REF",
        help="A version of this node: its CID or the beginning of it, NAME, or NAME@VERSION.",
        show_default=False,
    ),
]
