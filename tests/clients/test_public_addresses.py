"""No request reaches a private address, however it is written and whatever a name answers."""

import random
from ipaddress import ip_address

import pytest
from aiohttp.abc import AbstractResolver
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from batuta.clients import HttpTransport
from batuta.clients.http_target import HttpTarget
from batuta.clients.public_addresses import PublicResolver, is_public_address, is_public_url
from batuta.errors import ProviderUnreachableError
from fakes.web import PRIVATE, FakeWeb

PUBLIC = (
    "http://example.com/",
    "https://8.8.8.8/",
    "http://[2606:4700::1111]/x",
    "https://a-b.co.uk:8443/?q=1",
)


class Names(AbstractResolver):
    """Answers with the next list of addresses, the last one again and again."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = 0

    async def resolve(self, host, port=0, family=0):
        self.asked += 1
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [
            {"hostname": host, "host": each, "port": port, "family": 2, "proto": 0, "flags": 0}
            for each in found
        ]

    async def close(self):
        pass


@pytest.mark.parametrize("url", PUBLIC)
def test_the_public_internet_is_public(url):
    assert is_public_url(url)


@pytest.mark.parametrize("url", [each for each in PRIVATE if "://" in each and "file" not in each])
def test_private_networks_are_not(url):
    assert not is_public_url(url)


@given(st.ip_addresses())
def test_an_address_is_judged_the_same_alone_and_in_a_url(address):
    host = f"[{address}]" if address.version == 6 else str(address)
    assert is_public_url(f"http://{host}/") == is_public_address(str(address))
    assert not (
        is_public_address(str(address))
        and not address.is_global
        and not getattr(address, "ipv4_mapped", None)
    )


def mutated(rng):
    """A private address in another dress."""
    number = rng.choice((0x7F000001, 0x0A000005, 0xA9FEA9FE, 0xC0A80101, 0xAC100001, 0x64400001, 0))
    octets = [number >> shift & 255 for shift in (24, 16, 8, 0)]
    written = rng.choice((
        lambda: ".".join(map(str, octets)), lambda: str(number), lambda: hex(number), lambda: oct(number).replace("o", ""),
        lambda: ".".join(map(hex, octets)), lambda: f"{octets[0]}.{number & 0xFFFFFF}",
        lambda: f"[::ffff:{'.'.join(map(str, octets))}]", lambda: f"[2002:{number >> 16:x}:{number & 0xFFFF:x}::]",
        lambda: f"[::{'.'.join(map(str, octets))}]", lambda: f"[64:ff9b::{number:x}]" if number < 0x10000 else f"[64:ff9b::{number >> 16:x}:{number & 0xFFFF:x}]",
        lambda: "localhost", lambda: "[::1]", lambda: "[fe80::1%25eth0]", lambda: "[fd00::5]", lambda: "a.internal",
    ))()  # fmt: skip
    changes = (
        lambda text: text, lambda text: text + ".", lambda text: text.upper(), lambda text: f"user@{text}",
        lambda text: f"example.com@{text}", lambda text: text.replace(".", "。"), lambda text: text.replace("1", "１"),
        lambda text: f"{text}:80", lambda text: text.replace("a", "%61"), lambda text: f"{text}\\@example.com",
        lambda text: f" {text}", lambda text: f"{text}\t", lambda text: f"example.com:80\\@{text}",
    )  # fmt: skip
    host = rng.choice(changes)(written)
    return f"{rng.choice(('http', 'https', 'HTTP'))}://{host}{rng.choice(('', '/', '/x', '?a', '#b', '/@example.com'))}"


def test_ten_thousand_disguises_of_private_addresses_are_refused():
    rng = random.Random(7)
    let_through = {url for url in (mutated(rng) for _ in range(10_000)) if is_public_url(url)}
    for url in let_through:  # what is let through leads where it says
        host = URL(url).host or ""
        assert not host.startswith("user") and is_public_url(f"http://{host}/")
        try:
            address = ip_address(host)
        except ValueError:
            continue
        assert is_public_address(str(address)), url
    assert not let_through


@pytest.mark.anyio
@pytest.mark.parametrize(
    "answers", [["127.0.0.1"], ["93.184.216.34", "127.0.0.1"], ["::1"], ["::ffff:127.0.0.1"]]
)
async def test_a_name_of_a_private_address_is_not_called(answers):
    async with FakeWeb(count=1) as fake:
        port = fake.canary.rpartition(":")[2]
        async with HttpTransport(resolver=PublicResolver(resolver=Names(answers))) as http:
            with pytest.raises(ProviderUnreachableError):
                await http.fetch(HttpTarget(url=f"http://site.org:{port}/"), "*/*", 1000)
        assert not fake.trespasses


@pytest.mark.anyio
async def test_a_name_that_changes_its_mind_is_called_at_the_address_that_was_checked():
    async with FakeWeb(count=1) as fake:
        port = fake.host.rpartition(":")[2]
        names = Names(["93.184.216.34"], ["127.0.0.1"])
        resolver = PublicResolver(resolver=names)
        assert [each["host"] for each in await resolver.resolve("site.org", 80)] == [
            "93.184.216.34"
        ]
        async with HttpTransport(resolver=resolver) as http:
            with pytest.raises(ProviderUnreachableError):
                await http.fetch(HttpTarget(url=f"http://site.org:{port}/"), "*/*", 1000)
        assert names.asked == 2 and not fake.received


@pytest.mark.anyio
async def test_a_host_of_the_settings_may_be_private():
    async with FakeWeb(count=1) as fake:
        port = fake.host.rpartition(":")[2]
        resolver = PublicResolver({f"site.org:{port}"}, Names(["127.0.0.1"]))
        async with HttpTransport(resolver=resolver) as http:
            (path,) = fake.pages
            body = await http.fetch(HttpTarget(url=f"http://site.org:{port}{path}"), "*/*", 100_000)
            assert body.status in {200, 404} and len(fake.received) == 1
            with pytest.raises(ProviderUnreachableError):
                await http.fetch(HttpTarget(url="http://site.org:9/"), "*/*", 1000)
