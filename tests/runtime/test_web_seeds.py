"""Web seeds against a real server on loopback: right ones, wrong ones, and who is asked when."""

from __future__ import annotations

import ssl
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from sbp2p.config import WebConfig
from sbp2p.errors import ConfigError, NotFoundError, PeerUnreachableError, Sbp2pError
from sbp2p.exchange.web import read_web_seeds
from sbp2p_protocol.manifest import Manifest, sign_manifest
from tests.runtime.exchange_lab import BLOCK, PUBLISHER, BadSeed, make_version, open_lab
from tests.runtime.store_samples import noise
from tests.runtime.web_server import WebServer, serve_web

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sbp2p.exchange import FetchResult
    from tests.runtime.exchange_lab import Lab, LabNode, Version

QUICK = WebConfig(
    after_s=0.0, retry_s=0.02, idle_timeout_s=0.5, max_failures=3, request_bytes=16 * BLOCK
)


@pytest.fixture
def version() -> Version:
    return make_version(
        {
            "config.json": b'{"layers": 2}',
            "sub folder/w#1%.bin": noise("weights", 50 * BLOCK + 17),
            "tail": noise("tail", 5 * BLOCK),
            "empty": b"",
        }
    )


@pytest.fixture
def server(version: Version) -> Iterator[WebServer]:
    with serve_web(WebServer(version.files)) as running:
        yield running


async def reader(lab: Lab, version: Version, web: WebConfig = QUICK) -> LabNode:
    """Return a node that knows what the version is, and has no block of it."""
    lab.config = replace(lab.config, web=web)
    node = await lab.node()
    node.have(version, [])
    return node


async def get(
    node: LabNode, version: Version, *urls: str, sources: Any = (), **options: Any
) -> FetchResult:
    return await node.exchange.fetch(
        version.link, node.out, sources=sources, web_seeds=read_web_seeds(urls), **options
    )


async def test_everything_from_the_web(tmp_path: Path, version: Version, server: WebServer) -> None:
    async with open_lab(tmp_path) as lab:
        leech = await reader(lab, version)
        result = await get(leech, version, server.url)
        version.assert_at(leech.out)
    (web,) = result.web_seeds
    assert (web.url, web.dropped) == (server.url, "")
    assert web.blocks_verified == len(version.table)
    assert web.bytes_received == version.table.total_bytes == result.bytes_received
    # several blocks a request, no byte twice, never more at once than allowed
    assert len(server.requests) < len(version.table) / 3
    asked = sorted(server.requests)
    for (path, _, stop), (other, start, _) in pairwise(asked):
        assert path != other or stop <= start
    assert server.most_at_once <= QUICK.parallel_requests
    assert server.connections <= QUICK.parallel_requests


async def test_an_own_limit_of_requests(
    tmp_path: Path, version: Version, server: WebServer
) -> None:
    async with open_lab(tmp_path) as lab:
        web = replace(QUICK, parallel_requests=1, request_bytes=2 * BLOCK)
        leech = await reader(lab, version, web)
        await get(leech, version, server.url)
        version.assert_at(leech.out)
    assert server.most_at_once == 1
    assert len(server.requests) >= len(version.table) // 2


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("wrong bytes", "does not match its hash"),
        ("ignores range", "it ignores ranges"),
        ("other range", "another range than was asked for"),
        ("other size", "a file of"),
        ("no content range", "a part without Content-Range"),
        ("longer length", "a body of"),
        ("longer chunks", "a longer body than was asked for"),
        ("encoded", "an encoded body"),
        ("no http", "it is no HTTP"),
        ("endless head", "it is no HTTP"),
        ("not found", "status 404"),
        ("forbidden", "status 403"),
    ],
)
async def test_a_wrong_server_is_dropped_and_named(
    tmp_path: Path, version: Version, server: WebServer, fault: str, reason: str
) -> None:
    server.fault = fault
    good = WebServer(version.files, prefix="/good/")
    with serve_web(good):
        async with open_lab(tmp_path) as lab:
            leech = await reader(lab, version)
            result = await get(leech, version, server.url, good.url)
            version.assert_at(leech.out)
    bad, right = result.web_seeds
    assert reason in bad.dropped or not server.requests
    assert right.dropped == ""
    assert bad.blocks_verified + right.blocks_verified == len(version.table)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("wrong bytes", "block [0-9]+ does not match its hash"),
        ("not found", "status 404"),
        ("unavailable", "status 503, 3 times in a row"),
        ("lost", "the connection was lost, 3 times in a row"),
        ("cut off", "the connection was lost, 3 times in a row"),
        ("silent", "it does not answer, 3 times in a row"),
    ],
)
async def test_when_only_wrong_servers_are_left(
    tmp_path: Path, version: Version, server: WebServer, fault: str, reason: str
) -> None:
    server.fault = fault
    async with open_lab(tmp_path) as lab:
        leech = await reader(lab, version)
        with pytest.raises(Sbp2pError, match=f"missing; web seed {server.url}: {reason}"):
            await get(leech, version, server.url)


@pytest.mark.parametrize("fault", ["unavailable", "lost", "cut off", "tiny chunks"])
async def test_a_passing_failure_is_got_over(
    tmp_path: Path, version: Version, server: WebServer, fault: str
) -> None:
    server.fault, server.faults_left = fault, 2
    async with open_lab(tmp_path) as lab:
        leech = await reader(lab, version, replace(QUICK, parallel_requests=1))
        result = await get(leech, version, server.url)
        version.assert_at(leech.out)
    assert result.web_seeds[0].dropped == ""


async def test_redirects_are_followed_and_remembered(
    tmp_path: Path, version: Version, server: WebServer
) -> None:
    asking = WebServer(version.files, prefix="/here/", fault="redirect")
    files = {path.rpartition("/")[2]: data for path, data in version.files.items()}
    server.files = files
    asking.location = server.url + "NAME?signature=1"
    with serve_web(asking):
        async with open_lab(tmp_path) as lab:
            leech = await reader(lab, version, replace(QUICK, parallel_requests=1))
            await get(leech, version, asking.url)
            version.assert_at(leech.out)
    assert len(asking.requests) <= 3 < len(server.requests)


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("NAME", "more than 5 redirects"),
        ("", "a URL of 0 characters"),
        ("file:///etc/passwd", "only http and https"),
        ("http://user@127.0.0.1/NAME", "a user name"),
        ("http://[::1]:9/NAME", "not a public one"),
        ("http://localhost:9/NAME", "not a public one"),
        ("http://169.254.169.254/latest/meta-data/", "not a public one"),
        ("http://10.0.0.1/NAME", "not a public one"),
    ],
)
async def test_redirects_that_are_not_followed(
    tmp_path: Path, version: Version, server: WebServer, location: str, reason: str
) -> None:
    server.fault, server.location = "redirect", location
    async with open_lab(tmp_path) as lab:
        leech = await reader(lab, version)
        with pytest.raises(Sbp2pError, match=reason):
            await get(leech, version, server.url)


def named_in_manifest(version: Version, urls: str) -> Version:
    manifest = Manifest(
        name="model",
        version=1,
        root=version.manifest.root,
        publisher=PUBLISHER.peer_id,
        created=1,
        meta={"web_seeds": urls},
    )
    return replace(version, manifest=manifest, document=sign_manifest(manifest, PUBLISHER))


async def test_a_manifest_may_not_have_private_hosts_asked(
    tmp_path: Path, version: Version, server: WebServer
) -> None:
    named = named_in_manifest(version, f"{server.url} http://localhost:{server.port}/ file:///etc/")
    async with open_lab(tmp_path) as lab:
        leech = await reader(lab, named)
        with pytest.raises(PeerUnreachableError, match="not a public one"):
            await get(leech, named)
        assert server.connections == 0
        # the user's word is another thing
        await get(leech, named, server.url)
        named.assert_at(leech.out)


async def test_peers_come_first(tmp_path: Path, version: Version, server: WebServer) -> None:
    async with open_lab(tmp_path) as lab:
        seed = await lab.node()
        await seed.publish(version)
        leech = await reader(lab, version, replace(QUICK, after_s=0.5))
        result = await get(leech, version, server.url, sources=[seed.source])
        version.assert_at(leech.out)
    assert server.requests == []
    assert result.web_seeds[0].bytes_received == 0


async def test_what_peers_lack_comes_from_the_web(
    tmp_path: Path, version: Version, server: WebServer
) -> None:
    lacking = BadSeed(version, lacks=frozenset(range(20, 40)))
    async with open_lab(tmp_path) as lab:
        _, source = await lab.serve(lacking.handle)
        leech = await reader(lab, version, replace(QUICK, after_s=0.3))
        result = await get(leech, version, server.url, sources=[source])
        version.assert_at(leech.out)
    assert result.web_seeds[0].blocks_verified == 20
    assert {path for path, _, _ in server.requests} == {"sub folder/w#1%.bin"}


async def test_both_at_once_and_no_block_twice(
    tmp_path: Path, version: Version, server: WebServer
) -> None:
    slow = BadSeed(version, delay_s=0.002)
    async with open_lab(tmp_path) as lab:
        _, source = await lab.serve(slow.handle)
        leech = await reader(lab, version, replace(QUICK, use="first"))
        result = await get(leech, version, server.url, sources=[source])
        version.assert_at(leech.out)
    assert result.web_seeds[0].blocks_verified > 0
    assert result.bytes_useless <= 4 * BLOCK


async def test_never_is_never(tmp_path: Path, version: Version, server: WebServer) -> None:
    async with open_lab(tmp_path, patience_s=0.1) as lab:
        leech = await reader(lab, version, replace(QUICK, use="never"))
        with pytest.raises((NotFoundError, PeerUnreachableError)):
            await get(leech, version, server.url)
    assert server.connections == 0


async def test_a_server_that_ends_in_the_middle_is_resumed_from(
    tmp_path: Path, version: Version, server: WebServer
) -> None:
    server.fault = "not found"
    server.faults_left = 0
    async with open_lab(tmp_path) as lab:
        leech = await reader(lab, version, replace(QUICK, parallel_requests=1))
        with trio.move_on_after(10) as scope, ExitStack():

            def stop(progress: Any) -> None:
                if progress.blocks_verified > 10:
                    scope.cancel()

            await get(leech, version, server.url, progress=stop)
        before = sum(stop - start for _, start, stop in server.requests)
        server.requests.clear()
        result = await get(leech, version, server.url)
        version.assert_at(leech.out)
    if before < version.table.total_bytes:
        assert result.bytes_resumed > 0


async def test_cancelled_while_a_kept_connection_is_silent(
    tmp_path: Path, version: Version, server: WebServer
) -> None:
    server.fault, server.good_first = "silent", 6
    async with open_lab(tmp_path) as lab:
        web = replace(QUICK, parallel_requests=1, request_bytes=BLOCK, idle_timeout_s=60)
        leech = await reader(lab, version, web)
        with trio.move_on_after(1.0) as scope:
            await get(leech, version, server.url)
        # an open socket would be a ResourceWarning, and that an error
        assert scope.cancelled_caught
        assert not server.good_first


def certificate(folder: Path) -> Path:
    """Return a file with a key and a certificate for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    begin = datetime(2020, 1, 1, tzinfo=UTC)
    alternative = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=36500))
        .add_extension(alternative, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    path.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        + signed.public_bytes(Encoding.PEM)
    )
    return path


async def test_https(tmp_path: Path, version: Version) -> None:
    pem = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem)
    with serve_web(WebServer(version.files), context) as server:
        async with open_lab(tmp_path) as lab:
            leech = await reader(lab, version)
            with pytest.raises(Sbp2pError, match="TLS failed"):
                await get(leech, version, server.url)
            assert server.requests == []
            trusting = await reader(lab, version, replace(QUICK, ca_file=pem))
            result = await get(trusting, version, server.url)
            version.assert_at(trusting.out)
    assert result.web_seeds[0].dropped == ""


@pytest.mark.parametrize("url", ["file:///etc/", "model", "http://127.0.0.1/?a"])
def test_what_a_user_may_not_name(url: str) -> None:
    with pytest.raises(ConfigError, match="web seed") as caught:
        read_web_seeds([url])
    assert caught.value.hint
