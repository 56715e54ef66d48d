"""One libtorrent peer of the `swarm` benchmark; speaks as sbp2p_swarm.py does.

Runs in libtorrent's own environment and imports nothing of sbp2p. The variants are ways a user
could run it; see `settings`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from pathlib import Path

import libtorrent as lt

POLL_MS = 200


def say(event: str, **fields: object) -> None:
    """Write one event."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def settings(listen: str, *, tuned: bool) -> dict[str, object]:
    """Return session settings: libtorrent's own, without discovery; `tuned` for these links.

    Tuned: TCP alone, because uTP yields to the queues of other connections on the same link, and
    costs twice the processor time; four upload slots instead of eight, so that pieces get whole
    sooner; no waits before a connection is tried. Shorter choking rounds, other choking algorithms
    and more slots were tried, and were no better.
    """
    found: dict[str, object] = {
        "listen_interfaces": listen,
        "enable_dht": False,
        "enable_lsd": False,
        "enable_upnp": False,
        "enable_natpmp": False,
        "allow_multiple_connections_per_ip": True,
        "alert_mask": lt.alert.category_t.status_notification
        | lt.alert.category_t.error_notification,
    }
    if tuned:
        found |= {
            "enable_incoming_utp": False,
            "enable_outgoing_utp": False,
            "unchoke_slots_limit": 4,
            "smooth_connects": False,
            "connection_speed": 100,
            "min_reconnect_time": 1,
        }
    return found


def add(session: lt.session, args: argparse.Namespace) -> lt.torrent_handle:
    """Add the torrent: as a seed that has all, as a super-seed, or to fetch it."""
    params = lt.add_torrent_params()
    params.ti = lt.torrent_info(str(args.torrent))
    params.save_path = str(args.folder)
    if args.action == "seed":
        params.flags |= lt.torrent_flags.seed_mode
    if args.super_seeding:
        params.flags |= lt.torrent_flags.super_seeding
    params.flags &= ~lt.torrent_flags.auto_managed
    params.flags &= ~lt.torrent_flags.paused
    return session.add_torrent(params)


def wait_finished(session: lt.session, closed: threading.Event) -> bool:
    """Wait until the torrent is complete; False if standard input closed before."""
    while not closed.is_set():
        session.wait_for_alert(POLL_MS)
        for alert in session.pop_alerts():
            if isinstance(alert, lt.torrent_finished_alert):
                return True
    return False


def until_closed(closed: threading.Event) -> None:
    """Read standard input to its end."""
    while sys.stdin.readline():
        pass
    closed.set()


def run(args: argparse.Namespace) -> None:
    """Seed, or fetch and then seed, until standard input closes."""
    session = lt.session(settings(f"{args.host}:{args.port}", tuned=args.tuned))
    handle = add(session, args) if args.action == "seed" else None
    while not session.listen_port():
        time.sleep(0.01)
    say("ready", address=f"{args.host}:{args.port}")
    line = sys.stdin.readline()
    closed = threading.Event()
    threading.Thread(target=until_closed, args=(closed,), daemon=True).start()
    if line and handle is None:
        handle = add(session, args)
        for peer in json.loads(line)["peers"]:
            host, port = peer.rsplit(":", 1)
            handle.connect_peer((host, int(port)))
        if wait_finished(session, closed):
            at = time.monotonic()
            status = handle.status()
            say(
                "finished",
                at=at,
                file_bytes=status.total_wanted,
                payload_bytes=status.all_time_download,
                useless_bytes=status.total_redundant_bytes + status.total_failed_bytes,
            )
    closed.wait()
    sent = handle.status().total_payload_upload if handle is not None else 0
    say("end", payload_sent=sent)


def main() -> None:
    """Read the command line and run one peer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["seed", "fetch"])
    parser.add_argument("--torrent", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, default=6881)
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument("--super-seeding", action="store_true")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the benchmark, which ends us
    run(parser.parse_args())


if __name__ == "__main__":
    main()
