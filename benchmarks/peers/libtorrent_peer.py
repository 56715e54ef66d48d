"""libtorrent as a benchmark peer: create a torrent, seed it, or fetch it from one address.

Runs in libtorrent's own environment and imports nothing of sbp2p. Tuned as a user in a data centre
would: no rate limits, no discovery, deep request queues, large send buffers, two hashing threads.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import libtorrent as lt


def settings(encryption: str) -> dict[str, object]:
    """Return session settings; `encryption` is plain or rc4 (the whole stream, forced)."""
    policy = lt.enc_policy.forced if encryption == "rc4" else lt.enc_policy.disabled
    level = lt.enc_level.rc4 if encryption == "rc4" else lt.enc_level.plaintext
    return {
        "listen_interfaces": "127.0.0.1:0",
        "enable_dht": False,
        "enable_lsd": False,
        "enable_upnp": False,
        "enable_natpmp": False,
        "enable_incoming_utp": False,
        "enable_outgoing_utp": False,
        "in_enc_policy": policy,
        "out_enc_policy": policy,
        "allowed_enc_level": level,
        "prefer_rc4": encryption == "rc4",
        "aio_threads": 4,
        "hashing_threads": 2,
        "send_buffer_watermark": 16 * 1024 * 1024,
        "send_buffer_watermark_factor": 200,
        "max_out_request_queue": 2000,
        "max_allowed_in_request_queue": 4000,
        "request_queue_time": 3,
        "send_socket_buffer_size": 4 * 1024 * 1024,
        "recv_socket_buffer_size": 4 * 1024 * 1024,
        "alert_mask": lt.alert.category_t.status_notification
        | lt.alert.category_t.error_notification,
    }


def create(source: Path, torrent: Path, version: str, threads: int) -> dict[str, object]:
    """Write a torrent file for one file; return its piece size and the seconds that took.

    libtorrent hashes in one thread here: its Python binding takes no settings. With `threads`, the
    pieces are hashed by that many threads outside it and handed over, as its interface allows; that
    is for v1 torrents only.
    """
    flags = {"hybrid": 0, "v1": lt.create_torrent.v1_only, "v2": lt.create_torrent.v2_only}
    started = time.perf_counter()
    entry = lt.create_torrent(lt.list_files(str(source)), 0, flags[version])
    size = entry.piece_length()
    if threads:
        with ThreadPoolExecutor(threads) as pool:
            hashes = pool.map(partial(hash_piece, source, size), range(entry.num_pieces()))
            for number, digest in enumerate(hashes):
                entry.set_hash(number, digest)
    else:
        lt.set_piece_hashes(entry, str(source.parent))
    torrent.write_bytes(lt.bencode(entry.generate()))
    return {"seconds": time.perf_counter() - started, "piece_bytes": size}


def hash_piece(source: Path, size: int, number: int) -> bytes:
    """Return the SHA-1 of one piece."""
    with source.open("rb", buffering=0) as file:
        file.seek(number * size)
        return hashlib.sha1(file.read(size), usedforsecurity=False).digest()


def add(session: lt.session, torrent: Path, folder: Path, *, seeding: bool) -> lt.torrent_handle:
    """Add the torrent with `folder` as its save path."""
    params = lt.add_torrent_params()
    params.ti = lt.torrent_info(str(torrent))
    params.save_path = str(folder)
    if seeding:
        params.flags |= lt.torrent_flags.seed_mode
    params.flags &= ~lt.torrent_flags.auto_managed
    params.flags &= ~lt.torrent_flags.paused
    return session.add_torrent(params)


def seed(torrent: Path, folder: Path, encryption: str) -> None:
    """Serve until standard input closes."""
    session = lt.session(settings(encryption))
    add(session, torrent, folder, seeding=True)
    while not session.listen_port():
        time.sleep(0.01)
    sys.stdout.write(f"ready 127.0.0.1 {session.listen_port()}\n")
    sys.stdout.flush()
    sys.stdin.read()


def fetch(torrent: Path, folder: Path, host: str, port: int, encryption: str) -> dict[str, object]:
    """Fetch everything from one peer; return the seconds from connecting to finished."""
    session = lt.session(settings(encryption))
    handle = add(session, torrent, folder, seeding=False)
    started = time.perf_counter()
    handle.connect_peer((host, port))
    finished = None
    while finished is None:
        session.wait_for_alert(1000)
        for alert in session.pop_alerts():
            if isinstance(alert, lt.torrent_finished_alert):
                finished = time.perf_counter()
        if time.perf_counter() - started > 120:
            raise SystemExit("libtorrent did not finish within 120 s")
    handle.flush_cache()
    return {"seconds": finished - started}


def main() -> None:
    """Read the command line and do one of the three things."""
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["create", "seed", "fetch"])
    parser.add_argument("--source", type=Path)
    parser.add_argument("--torrent", type=Path, required=True)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--peer", nargs=2)
    parser.add_argument("--version", choices=["hybrid", "v1", "v2"], default="hybrid")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--encryption", choices=["plain", "rc4"], default="plain")
    args = parser.parse_args()
    if args.action == "seed":
        seed(args.torrent, args.folder, args.encryption)
        return
    if args.action == "create":
        result = create(args.source, args.torrent, args.version, args.threads)
    else:
        host, port = args.peer
        result = fetch(args.torrent, args.folder, host, int(port), args.encryption)
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
