"""Requests that no good client sends: good ones, bent at random, each from its own number."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from urllib.parse import unquote, urlencode

HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
IMAGE = "data:image/png;base64,iVBORw0KGgo="
WISHES = {
    "max_cost_usd": 1,
    "max_tokens": 5000,
    "max_steps": 3,
    "max_rounds": 2,
    "deadline_s": 20,
    "workers_allow": ["ada", "bob"],
    "workers_deny": [],
    "trace": True,
    "dry_run": False,
    "workflow": {"steps": [{"worker": "ada", "subtask": "x", "access": []}]},
}
CHAT = {
    "model": "batuta-ultra",
    "messages": [
        {"role": "system", "content": "Be exact."},
        {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": IMAGE, "detail": "low"}}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": TOOL, "strict": True}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": TOOL}},
    "stream_options": {"include_usage": True},
    "stop": ["END"],
    "seed": 7,
    "temperature": 0.5,
    "max_tokens": 50,
    "reasoning_effort": "low",
    "metadata": {"a": "b"},
    "orchestration": WISHES,
}  # fmt: skip
RESPONSE = {
    "model": "batuta-mini",
    "instructions": "Be exact.",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}, {"type": "input_image", "image_url": IMAGE}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "sunny"},
        {"type": "item_reference", "id": "@ITEM"},
    ],
    "previous_response_id": "@RESPONSE",
    "tools": [{"type": "function", "name": "f", "parameters": TOOL}, {"type": "web_search"}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "text": {"format": {"type": "json_schema", "name": "a", "schema": TOOL}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "truncation": "disabled",
    "max_output_tokens": 50,
    "orchestration": WISHES,
}  # fmt: skip
MESSAGE = {
    "model": "worker/ada",
    "max_tokens": 2000,
    "system": [{"type": "text", "text": "Be exact.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "sunny"}], "is_error": False}]},
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": TOOL}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "stop_sequences": ["END"],
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": TOOL}},
}  # fmt: skip
KEY = {
    "name": "ci",
    "tenant": "acme",
    "expires_in": 60,
    "limits": {
        "rpm": 5,
        "tpm": 500,
        "concurrency": 2,
        "per_day": "2.50",
        "per_month": "9",
        "max_cost": "0.5",
        "models": ["worker/*"],
        "workers_allow": ["ada"],
        "workers_deny": ["tag:region:eu"],
    },
}
TEXT = {
    "model": "batuta-mini",
    "prompt": ["Once"],
    "max_tokens": 9,
    "stop": ["END"],
    "temperature": 0.5,
    "stream_options": {"include_usage": True},
}
EMBEDDING = {
    "model": "worker/vec",
    "input": ["hi", "you"],
    "dimensions": 2,
    "encoding_format": "base64",
    "user": "u",
}
LIMITS = {
    "rpm": "5",
    "tpm": "500",
    "concurrency": "2",
    "per_day": "2.5",
    "per_month": "9",
    "max_cost": "0.5",
    "models": "worker/*",
    "workers_allow": "ada",
    "workers_deny": "bob",
}
LEAN: Mapping[str, Any] = {"model": "batuta-mini", "messages": HI, "max_tokens": 9}
ROUTES: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/chat/completions", {**LEAN, "stream": True}),
    ("POST", "/v1/chat/completions", {**LEAN, "model": "worker/eve"}),
    ("POST", "/v1/responses", RESPONSE),
    ("POST", "/v1/responses", {"model": "batuta-ultra", "input": "hi", "stream": True}),
    ("POST", "/v1/responses", {"model": "batuta-mini", "input": "hi", "background": True}),
    ("POST", "/v1/responses", {"model": "worker/eve", "input": "hi"}),
    ("POST", "/v1/messages", MESSAGE),
    ("POST", "/v1/messages", {**LEAN, "stream": True}),
    ("POST", "/v1/messages", {**LEAN, "model": "worker/eve"}),
    ("POST", "/v1/messages/count_tokens", MESSAGE),
    ("POST", "/v1/completions", {**TEXT, "stream": True}),
    ("POST", "/v1/completions", TEXT),
    ("POST", "/v1/embeddings", EMBEDDING),
    ("POST", "/v1/embeddings", {**EMBEDDING, "input": [[1, 2, 3], [4]]}),
    ("POST", "/v1/moderations", {"model": "omni", "input": ["a", "b"]}),
    ("GET", "/v1/responses/@RESPONSE", None),
    ("GET", "/v1/responses/@RESPONSE?stream=true&starting_after=2", None),
    ("DELETE", "/v1/responses/@GONE", None),
    ("POST", "/v1/responses/@JOB/cancel", {}),
    ("GET", "/v1/responses/@RESPONSE/input_items?limit=5&order=asc", None),
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/worker/ada", None),
    ("GET", "/v1/runs?limit=5&after=@CURSOR&model=batuta-mini&outcome=answered", None),
    ("GET", "/v1/runs/@RUN", None),
    ("POST", "/v1/runs/@RUN/feedback", {"score": 0.5, "comment": "fine"}),
    ("GET", "/v1/admin/keys?tenant=acme", None),
    ("POST", "/v1/admin/keys", KEY),
    ("GET", "/v1/admin/keys/@KEY", None),
    ("PATCH", "/v1/admin/keys/@KEY", {"limits": KEY["limits"], "name": "n", "expires_in": 9}),
    ("POST", "/v1/admin/keys/@KEY/rotate", {"grace_s": 1e6}),
    ("GET", "/v1/admin/tenants", None),
    ("POST", "/v1/admin/keys/@KEY/revoke", {}),
    ("PUT", "/v1/admin/tenants/spare", {"per_day": "1000000", "per_month": None}),
    ("GET", "/v1/admin/audit?action=key.&limit=3&after=9", None),
    ("GET", "/v1/admin/approvals", None),
    ("POST", "/v1/admin/approvals/run_1:0", {"decision": "approve", "digest": "x", "reason": "y"}),
    ("GET", "/v1/admin/spend?by=day,tenant&since=2026-01-01&until=2026-12-31", None),
    ("DELETE", "/v1/runs/@LOST", None),
    ("DELETE", "/v1/admin/tenants/nobody", None),
    ("GET", "/openapi.json", None),
    ("GET", "/docs", None),
    ("GET", "/healthz", None),
    ("GET", "/readyz", None),
    ("GET", "/metrics", None),
    ("GET", "/ui/", None),
    ("GET", "/ui/runs?after=@CURSOR", None),
    ("GET", "/ui/runs/@RUN", None),
    ("GET", "/ui/runs/@RUN/export.json", None),
    ("GET", "/ui/compare?runs=@RUN", None),
    ("GET", "/ui/compare/figures?runs=@RUN&runs=@RUN", None),
    ("GET", "/ui/pool", None),
    ("GET", "/ui/learning", None),
    ("GET", "/ui/learning/training/x", None),
    ("GET", "/ui/learning/report/x/whole", None),
    ("GET", "/ui/oidc/callback?code=x&state=y", None),
    ("GET", "/ui/own-keys", None),
    ("GET", "/ui/keys", None),
    ("GET", "/ui/audit?action=key.&after=9", None),
    ("GET", "/", None),
    ("POST", "/ui/ask", {**LEAN, "stream": True}),
    ("POST", "/ui/ask", {"replay": "@RUN", "scope": "a"}),
    ("POST", "/ui/sign-in", {"key": "x", "then": "/ui/runs", "token": "@TOKEN"}),
    ("POST", "/ui/runs/@RUN/feedback", {"score": "1", "comment": "c", "token": "@TOKEN"}),
    ("POST", "/ui/keys", {"tenant": "acme", "name": "n", "days": "3", **LIMITS, "token": "@TOKEN"}),
    ("POST", "/ui/keys/@KEY/limits", {**LIMITS, "token": "@TOKEN"}),
    ("POST", "/ui/keys/@KEY/rotate", {"token": "@TOKEN"}),
    (
        "POST",
        "/ui/budgets",
        {"tenant": "spare", "per_day": "9", "per_month": "", "token": "@TOKEN"},
    ),
    ("POST", "/ui/own-keys", {"name": "n", "token": "@TOKEN"}),
    ("POST", "/ui/own-keys/@KEY/revoke", {"token": "@TOKEN"}),
)
"""Every route of the API, and the page's that take anything; `@RUN` and the like are filled in."""

ADMINS = ("/v1/admin", "/metrics", "/ui/keys", "/ui/budgets", "/ui/audit")
NAMES = sorted({"n", "logprobs", "stream", "store", "user", "top_p", "name", "file", "refusal"} | {*CHAT, *RESPONSE, *MESSAGE, *KEY, *WISHES})  # fmt: skip
WORDS = ["", "x", "@RUN", "@RESPONSE", "@ITEM", "@KEY", "batuta-ultra", "worker/eve", "auto"]
WORDS += ["required", "../../etc/passwd", "{{7*7}}", "' OR 1=1 --", "%s%n", "\x00", "\ud800"]
WORDS += ["\u202e\u0000\ufeff", "\U0001f4a9" * 9, "e\u0301" * 30, "file:///etc/passwd", "null"]
WORDS += ["</subtask>", "1e999", "NaN", "-1", "x" * 70_000, "http://169.254.169.254/"]
NUMBERS = [0, -1, 1, 2**31, 2**63, -(2**63), 2**64, 10**400, 1e308, 1e-320, -0.0, 0.5]
NUMBERS += [float("nan"), float("inf"), float("-inf")]
DEEP = "@DEEP"
DEPTHS = (50, 130, 1100, 30_000)
KINDS = [b"", b"text/plain", b"application/xml", b"multipart/form-data; boundary=x"]
KINDS += [b"application/json; charset=utf-16", b"application/vnd.api+json", b"\xff\xfe", b"," * 300]
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "QUERY", "get"]
JUNK = [b"", b"x", b"\xff" * 9, b"a" * 9000, b"*/*;q=9", b"0", b"-1", b"gzip", b"../..", b"%00"]
HEADERS = [b"x-request-id", b"idempotency-key", b"accept", b"accept-encoding", b"cookie", b"origin"]
HEADERS += [b"traceparent", b"anthropic-version", b"x-api-key", b"host", b"range", b"if-none-match"]
HEADERS += [b"x-forwarded-for", b"x-forwarded-host", b"forwarded", b"x-http-method-override"]
HEADERS += [b"last-event-id", b"content-encoding", b"authorization", b"upgrade", b"x-stainless-raw"]


@dataclass(frozen=True)
class Sent:
    """One request, as it goes over the wire."""

    method: str
    path: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    length: bytes | None = None
    """What is said of the body's length; None: the truth."""
    cut: bool = False
    """The sender hangs up before all that it announced has come."""
    bent: tuple[str, ...] = field(default=(), compare=False)
    """What was done to it."""

    def raw(self) -> bytes:
        head = [f"{self.method} ".encode() + self.path + b" HTTP/1.1"]
        if not any(name.lower() == b"host" for name, _ in self.headers):
            head.append(b"host: localhost")
        if not any(name.lower() == b"transfer-encoding" for name, _ in self.headers):
            length = str(len(self.body)).encode() if self.length is None else self.length
            head.append(b"content-length: " + length)
        head += [name + b": " + value for name, value in self.headers]
        return b"\r\n".join([*head, b"connection: close", b"", b""]) + self.body

    @property
    def place(self) -> str:
        """The path as the server decodes it."""
        return unquote(self.path.partition(b"?")[0].decode("latin-1"), "latin-1")


def requests(first: int, count: int, ids: Ids) -> Iterator[tuple[str, Sent]]:
    """Who asks, and what: a role's name and a bent request for every number from `first` on.

    Each depends on its number and on the ids alone.
    """
    for number in range(first, first + count):
        random = Random(number)
        method, path, value = random.choice(ROUTES)
        role = _role(random, path)
        yield role, _bent(random, method, path, value, ids[role])


Ids = Mapping[str, Mapping[str, Sequence[str]]]
"""By role and by word such as `RUN`, the ids that may stand in its place."""
ROLES = ("none", "wrong", "acme", "narrow", "other", "admin")


def good(ids: Ids) -> Iterator[tuple[str, Sent]]:
    """Every route once, as somebody asks it who may."""
    for method, path, value in ROUTES:
        role = "admin" if path.startswith(ADMINS) else "acme"
        own = {word: known[:1] for word, known in ids[role].items()}
        filled = _filled(Random(0), value, own)
        body = b"" if value is None else json.dumps(filled).encode()
        kind = ((b"content-type", b"application/json"),) if body else ()
        if value is not None and is_form(path):
            body, kind = as_form(filled), FORM
        yield role, Sent(method, _filled(Random(0), path, own).encode(), kind, body)


FORM = ((b"content-type", b"application/x-www-form-urlencoded"),)


def is_form(path: str) -> bool:
    """Whether the page's forms are posted there, and no JSON."""
    return path.startswith("/ui/") and path != "/ui/ask"


def as_form(value: Any) -> bytes:
    """The object's fields as a form; of what is none, the JSON."""
    if not isinstance(value, dict):
        return json.dumps(value).encode()
    fields = [(n, v if isinstance(v, str) else json.dumps(v)) for n, v in value.items()]
    return urlencode(fields, errors="surrogatepass").encode()


def _role(random: Random, path: str) -> str:
    """Mostly somebody who may, so that more is tried than the door."""
    if random.random() < 0.35:
        return random.choice(ROLES)
    return "admin" if path.startswith(ADMINS) else random.choice(("acme", "other"))


def _bent(random: Random, method: str, path: str, value: Any, ids: Mapping[str, Any]) -> Sent:
    bent: list[str] = []
    if value is not None:
        value = json.loads(json.dumps(value))
        for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
            value = _bend(random, value, bent)
    body = b"" if value is None else _encoded(random, _filled(random, value, ids), bent)
    headers = ((b"content-type", b"application/json"),) if body else ()
    if value is not None and is_form(path):
        form = as_form(_filled(random, value, ids))
        body = form if not form or random.random() < 0.8 else _flipped(random, form)
        headers = FORM
    sent = Sent(method, _filled(random, path, ids).encode(), headers, body, bent=tuple(bent))
    for _ in range(random.choice((0, 0, 0, 1, 2) if value is not None else (0, 1, 1, 2))):
        name, bend = random.choice(WIRE)
        sent = replace(bend(random, sent), bent=(*sent.bent, name))
    return sent


def _filled(random: Random, value: Any, ids: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        for word, known in ids.items():
            while f"@{word}" in value:
                value = value.replace(f"@{word}", random.choice(known), 1)
        return value
    if isinstance(value, list):
        return [_filled(random, one, ids) for one in value]
    if isinstance(value, dict):
        return {name: _filled(random, one, ids) for name, one in value.items()}
    return value


def _odd(random: Random) -> Any:
    """A value that is probably not the one that belongs there."""
    kind = random.randrange(8)
    if kind < 2:
        return random.choice((None, True, False, [], {}, [[]], [None]))
    if kind < 4:
        return random.choice(NUMBERS)
    if kind < 6:
        return random.choice(WORDS)
    if kind == 6:
        return f"{DEEP}{random.choice('[{')}{random.choice(DEPTHS)}"
    return {random.choice(NAMES): random.choice(WORDS) for _ in range(3)}


def _bend(random: Random, value: Any, bent: list[str]) -> Any:
    """The value with one thing changed, somewhere in it."""
    places = [place for place in json_places(value) if place]
    if not places or random.random() < 0.03:
        bent.append("whole")
        return _odd(random)
    place = random.choice(places)
    holder = value
    for step in place[:-1]:
        holder = holder[step]
    name, old = place[-1], holder[place[-1]]
    how = random.choice(("odd", "odd", "odd", "drop", "add", "many", "wrap", "rename"))
    bent.append(f"{how} {'.'.join(map(str, place))}")
    if how == "drop":
        del holder[name]
    elif how == "add" and isinstance(holder, dict):
        holder[random.choice(NAMES)] = _odd(random)
    elif how == "many" and isinstance(old, list):
        holder[name] = (old or [None]) * random.choice((2, 130, 600))
    elif how == "rename" and isinstance(holder, dict):
        holder[random.choice((f"{name} ", str(name).upper(), "__proto__", ""))] = holder.pop(name)
    else:
        holder[name] = [old] if how == "wrap" else _odd(random)
    return value


def json_places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of the value and of each value in it."""
    yield at
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    for name, one in inner:
        yield from json_places(one, (*at, name))


def _encoded(random: Random, value: Any, bent: list[str]) -> bytes:
    """JSON, now and then damaged."""
    data = json.dumps(value).encode()
    for opening, closing in (("[", b"]"), ('{"a":', b"}")):
        for depth in DEPTHS:
            mark = f'"{DEEP}{opening[0]}{depth}"'.encode()
            data = data.replace(mark, opening.encode() * depth + b"1" + closing * depth)
    if random.random() < 0.88:
        return data
    name, damage = random.choice(DAMAGES)
    bent.append(name)
    return damage(random, data)


def _flipped(random: Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(random.choice((1, 3, 20))):
        found[random.randrange(len(found))] = random.randrange(256)
    return bytes(found)


DAMAGES: tuple[tuple[str, Callable[[Random, bytes], bytes]], ...] = (
    ("truncated", lambda r, data: data[: r.randrange(len(data))]),
    ("flipped", _flipped),
    ("twice", lambda r, data: data + data),
    ("bom", lambda r, data: b"\xef\xbb\xbf" + data),
    ("utf-16", lambda r, data: data.decode().encode("utf-16")),
    ("gzip", lambda r, data: gzip.compress(data)),
    ("nul", lambda r, data: data + b"\0" * 9),
    ("same name twice", lambda r, data: b'{"model":1,' + data[1:]),
    ("noise", lambda r, data: r.randbytes(200)),
)


def _with(sent: Sent, *headers: tuple[bytes, bytes]) -> Sent:
    gone = {name for name, _ in headers}
    return replace(sent, headers=(*(h for h in sent.headers if h[0] not in gone), *headers))


def _method(random: Random, sent: Sent) -> Sent:
    return replace(sent, method=random.choice(METHODS))


def _path(random: Random, sent: Sent) -> Sent:
    ends = (b"/", b"%00", b"/..%2f..", b"%ff%fe", b"//", b";a=b", b"/" + b"x" * 3000, b"%e2%80%ae")
    ends += (b"?limit=" + b"9" * 400, b"?stream=maybe", b"?%zz=%", b"?" + b"a=b&" * 3000)
    ends += (b"?after=%00%ff", b"?by=tenant,digest", b"?since=2026-99-99", b"?starting_after=-1")
    return replace(sent, path=sent.path + random.choice(ends))


def _kind(random: Random, sent: Sent) -> Sent:
    return _with(sent, (b"content-type", random.choice(KINDS)))


def _junk(random: Random, sent: Sent) -> Sent:
    chosen = random.sample(HEADERS, random.choice((1, 2, 5)))
    return _with(sent, *((name, random.choice(JUNK)) for name in chosen))


def _repeated(random: Random, sent: Sent) -> Sent:
    return _with(sent, (b"idempotency-key", b"k%d" % random.randrange(20)))


def _session(random: Random, sent: Sent) -> Sent:
    names = (b"admin.99999999999.x", b"..", b"x.1.", b"admin.1" + b"0" * 500, b"\xff.\xb2.\xff")
    return _with(sent, (b"cookie", b"batuta_session=" + random.choice(names)))


def _length(random: Random, sent: Sent) -> Sent:
    wrong = (b"%d" % (len(sent.body) + 10), b"99999999999", b"9" * 30, b"-1", b"x", b"")
    return replace(sent, length=random.choice(wrong), cut=True)


def _chunked(random: Random, sent: Sent) -> Sent:
    size = b"%x" % len(sent.body)
    bodies = (
        (size + b"\r\n" + sent.body + b"\r\n0\r\n\r\n", False),
        (size + b"\r\n" + sent.body, True),
        (b"zz\r\n" + sent.body, True),
        (b"ffffffffffffffffff\r\n" + sent.body, True),
    )
    body, cut = random.choice(bodies)
    return replace(_with(sent, (b"transfer-encoding", b"chunked")), body=body, cut=cut)


def _torn(random: Random, sent: Sent) -> Sent:
    return replace(sent, method=random.choice((f"{sent.method}\t", "", "\x01", "PRI * HTTP/2.0")))


def _large(random: Random, sent: Sent) -> Sent:
    return _with(sent, *((b"x-%d" % n, b"y" * 7000) for n in range(random.choice((5, 10)))))


WIRE: tuple[tuple[str, Callable[[Random, Sent], Sent]], ...] = (
    ("method", _method),
    ("path", _path),
    ("path", _path),
    ("kind", _kind),
    ("junk", _junk),
    ("junk", _junk),
    ("repeated", _repeated),
    ("repeated", _repeated),
    ("session", _session),
    ("length", _length),
    ("chunked", _chunked),
    ("torn", _torn),
    ("large headers", _large),
)
