"""How providers are reached from networks that have a proxy and certificates of their own."""

import asyncio

import pytest

from batuta.clients import HttpTransport
from batuta.clients.http_target import HttpTarget, OutwardRoutes
from batuta.errors import ConfigError, ProviderUnreachableError
from fakes.openai import FakeOpenAI

pytestmark = pytest.mark.anyio
PROXY = "http://127.0.0.1:3128"


class HttpProxy:
    """Answers requests for any address with JSON, and tunnels with `status`."""

    def __init__(self, status=403):
        self.status, self.lines, self.headers = status, [], ""

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.lines.append(head.split("\r\n")[0])
        self.headers = head.lower()
        status = f"{self.status} No" if head.startswith("CONNECT") else "200 OK"
        told = (
            f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
        )
        writer.write(told.encode())
        await writer.drain()
        writer.close()


async def test_a_provider_is_asked_through_the_proxy():
    async with HttpProxy() as proxy:
        login = proxy.url.replace("//", "//ann:s%40cret@")
        async with HttpTransport(environ={"HTTP_PROXY": login}) as http:
            key = {"authorization": "Bearer k"}
            target = HttpTarget(url="http://provider.example/v1/x", headers=key)
            assert await http.post(target, {"a": 1}) == {}
            assert await http.get(target) == {}
    assert proxy.lines[0] == "POST http://provider.example/v1/x HTTP/1.1"
    assert "proxy-authorization: basic yw5uonnay3jlda==" in proxy.headers
    assert "authorization: bearer k" in proxy.headers


async def test_https_is_tunnelled_and_a_proxy_that_refuses_is_said():
    async with HttpProxy(407) as proxy, HttpTransport(environ={"https_proxy": proxy.url}) as http:
        with pytest.raises(ProviderUnreachableError, match=r"the proxy refused .* \(407\)"):
            await http.post(HttpTarget(url="https://provider.example/v1"), {})
    assert proxy.lines == ["CONNECT provider.example:443 HTTP/1.1"]
    async with HttpTransport(environ={"HTTPS_PROXY": proxy.url}) as http:
        with pytest.raises(ProviderUnreachableError, match="no connection to the proxy"):
            await http.post(HttpTarget(url="https://provider.example/v1"), {})


async def test_servers_of_this_machine_are_asked_directly():
    async with FakeOpenAI() as server, HttpTransport(environ={"ALL_PROXY": PROXY}) as http:
        server.models = [{"id": "m"}]
        assert (await http.get(HttpTarget(url=f"{server.url}/models")))["data"]


@pytest.mark.parametrize(
    ("named", "url", "direct"),
    [
        ("example.org", "https://api.example.org/v1", True),
        (".example.org", "https://api.example.org/v1", True),
        ("example.org", "https://notexample.org/v1", False),
        ("a.org, 10.0.0.0/8", "http://10.1.2.3:8000/v1", True),
        ("10.0.0.0/8", "http://11.1.2.3/v1", False),
        ("fd00::/8", "http://[fd00::1]:8000/v1", True),
        ("*", "https://api.example.org/v1", True),
        ("", "https://api.example.org/v1", False),
        ("", "http://localhost:8000/v1", True),
        ("", "http://[::1]:8000/v1", True),
    ],
)
def test_no_proxy_in_its_forms(named, url, direct):
    routes = OutwardRoutes({"HTTPS_PROXY": PROXY, "HTTP_PROXY": PROXY, "NO_PROXY": named})
    assert (routes.find_proxy(url).url is None) is direct


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1080", "http://", "http://[::1"])
def test_a_proxy_that_cannot_be_used_is_said_at_the_beginning(proxy):
    with pytest.raises(ConfigError, match="HTTPS_PROXY must be"):
        HttpTransport(environ={"HTTPS_PROXY": proxy})


def test_a_proxy_that_no_call_needs_may_be_of_any_kind():
    """Programs for proxies set all three variables, and ALL_PROXY to one of SOCKS."""
    unused = {"all_proxy": "socks5://127.0.0.1:7890"}
    routes = OutwardRoutes({"http_proxy": PROXY, "https_proxy": PROXY, **unused})
    assert str(routes.find_proxy("https://api.example.org/v1").url) == PROXY
    with pytest.raises(ConfigError, match="ALL_PROXY must be"):
        OutwardRoutes({"https_proxy": PROXY, **unused})


def test_certificates_of_one_s_own(tmp_path):
    with pytest.raises(ConfigError, match="is not a file"):
        HttpTransport(environ={"SSL_CERT_FILE": str(tmp_path / "nowhere.pem")})
    (tmp_path / "empty.pem").write_text("nothing")
    with pytest.raises(ConfigError, match="contains no certificates"):
        HttpTransport(environ={"SSL_CERT_FILE": str(tmp_path / "empty.pem")})
    assert OutwardRoutes({}).certificates is None
    assert OutwardRoutes({"SSL_CERT_DIR": str(tmp_path)}).certificates is not None
