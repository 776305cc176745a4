"""What a visitor of the page does without a browser."""

import re

from gateway.ui.page_server import QUESTION


async def token_of(http, address="/ui/"):
    async with http.get(address) as response:
        return re.search(r'(?:name="token" value|data-token)="([^"]+)"', await response.text())[1]


async def sign_in(http, key):
    form = {"key": key, "token": await token_of(http, "/ui/sign-in"), "then": "/ui/runs"}
    async with http.post("/ui/sign-in", data=form, allow_redirects=False) as response:
        return response.status, response.headers


async def asked(http):
    body = {"model": "batuta-mini", "messages": [{"role": "user", "content": QUESTION}]}
    headers = {"x-token": await token_of(http)}
    async with http.post("/ui/ask", json=body, headers=headers) as response:
        assert response.status == 200
        return response.headers["x-batuta-run-id"], await response.text()
