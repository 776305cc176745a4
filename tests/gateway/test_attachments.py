"""Files and recordings: read at the edge, shown to who can take them, sent as each dialect says."""

from base64 import b64encode

import pytest

from batuta.clients import HttpTransport, ScriptedClient
from batuta.clients.anthropic.client import AnthropicClient
from batuta.clients.gemini.client import GeminiClient
from batuta.clients.http_target import Secret
from batuta.clients.openai.client import COMPATIBLE_DIALECT, OpenAIChatClient
from batuta.conductors import sequential_chain
from batuta.core import Audio, File, Message, Pool, Request, Role, Text, Worker, WorkerId
from batuta.core.cost_bound import bound_call_cost
from batuta.errors import BadRequestError
from batuta.gateway import served_models
from batuta.guardrails import Guardrail, Guardrails, GuardrailStage
from batuta.store import decode_run, encode_run
from fakes import FakeAnthropic, FakeGemini, FakeOpenAI
from fakes.server import KEY
from gateway.live_server import PRICE, Serving, scripted_state, server_state, stored

pytestmark = pytest.mark.anyio

PDF = b64encode(b"%PDF-1.4\n%%EOF").decode()
WAV = b64encode(b"RIFF....WAVEfmt ").decode()
NOTES = b64encode("Susan is in Málaga.".encode()).decode()
PDF_FILE = File(media_type="application/pdf", data=PDF, name="a.pdf")
WAV_AUDIO = Audio(data=WAV, format="wav")


def asks(dialect, *parts):
    """A body of that dialect whose only message has these parts."""
    path = {
        "chat": "/v1/chat/completions",
        "responses": "/v1/responses",
        "messages": "/v1/messages",
    }[dialect]
    message = {"role": "user", "content": list(parts)}
    body = {"model": "batuta-ultra", "max_tokens": 9}
    if dialect == "responses":
        return path, {"model": "batuta-ultra", "input": [message]}
    return path, {**body, "messages": [message]}


def document(**source):
    return {"type": "document", "source": source}


FILES = {
    "chat": [
        {
            "type": "file",
            "file": {"file_data": f"data:application/pdf;base64,{PDF}", "filename": "a.pdf"},
        },
        {"type": "file", "file": {"file_data": PDF, "filename": "a.pdf"}},
    ],
    "responses": [
        {
            "type": "input_file",
            "file_data": f"data:application/pdf;base64,{PDF}",
            "filename": "a.pdf",
        }
    ],
    "messages": [
        {**document(type="base64", media_type="application/pdf", data=PDF), "title": "a.pdf"}
    ],
}
TEXTS = {
    "chat": [
        {
            "type": "file",
            "file": {"file_data": f"data:text/plain;base64,{NOTES}", "filename": "n.txt"},
        }
    ],
    "responses": [{"type": "input_file", "file_data": NOTES, "filename": "n.txt"}],
    "messages": [
        {
            **document(type="text", media_type="text/plain", data="Susan is in Málaga."),
            "title": "n.txt",
        },
        {**document(type="content", content="Susan is in Málaga."), "title": "n.txt"},
        {**document(type="base64", media_type="text/plain", data=NOTES), "title": "n.txt"},
    ],
}
AUDIO = {
    "chat": [{"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}}],
    "responses": [{"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}}],
}


def each(table):
    return [(dialect, part) for dialect, parts in table.items() for part in parts]


def app_state_of(store=None, tags=("files", "audio"), **options):
    """Ada cannot be shown anything, Bob can."""
    bob = ScriptedClient(lambda _: "Read.")
    pool = Pool(
        (
            Worker(id=WorkerId("ada"), model="m", strength=0.9, price=PRICE),
            Worker(id=WorkerId("bob"), model="m", strength=0.1, price=PRICE, tags=tags),
        )
    )
    clients = {"ada": ScriptedClient(lambda _: "Not for me."), "bob": bob}
    conductor = sequential_chain(["Think.", "Answer."], ["bob", "bob"])
    state = server_state(pool, clients, served_models(pool, conductor), store=store, **options)
    return state, bob


@pytest.mark.parametrize(("dialect", "part"), each(FILES) + each(AUDIO))
async def test_every_step_gets_what_is_attached(dialect, part, store):
    state, bob = app_state_of(store)
    path, body = asks(
        dialect,
        {"type": "text" if dialect != "responses" else "input_text", "text": "What is it?"},
        part,
    )
    async with Serving(state) as server:
        status, _, got = await server.post(path, json=body)
        (row,) = await stored(store)
        run = await store.get(row.id)
    assert status == 200, got
    wanted = PDF_FILE if "file" in str(part) or dialect == "messages" else WAV_AUDIO
    for request in bob.requests:
        assert [m.attachments for m in request.messages if m.attachments] == [(wanted,)]
    assert decode_run(encode_run(run)) == run


@pytest.mark.parametrize(("dialect", "part"), each(TEXTS))
async def test_a_text_file_is_text_to_everybody(dialect, part):
    state, bob = app_state_of(tags=())
    path, body = asks(dialect, part)
    async with Serving(state) as server:
        status, _, got = await server.post(path, json=body)
    assert status == 200, got
    assert "File n.txt:\nSusan is in Málaga." in bob.requests[0].messages[0].text


@pytest.mark.parametrize(("dialect", "part"), each(TEXTS))
async def test_a_text_file_is_screened_as_text(dialect, part):
    find = Guardrail(
        name="names",
        detect=lambda text: [(at, at + 5) for at in [text.find("Susan")] if at >= 0],
        stages=frozenset({GuardrailStage.INPUT}),
    )
    state, bob = app_state_of(guardrails=Guardrails((find,)))
    path, body = asks(dialect, part)
    async with Serving(state) as server:
        status, _, _ = await server.post(path, json=body)
    assert status == 200
    assert "Susan" not in str(bob.requests)


@pytest.mark.parametrize(("dialect", "part"), each(FILES) + each(AUDIO))
async def test_nobody_who_can_is_a_refusal_by_name(dialect, part):
    state, bob = app_state_of(tags=("vision",))
    path, body = asks(dialect, part)
    async with Serving(state) as server:
        status, _, got = await server.post(path, json=body)
    assert status == 400
    assert "to a worker that can" in got["error"]["message"]
    assert not bob.requests


@pytest.mark.parametrize(
    ("dialect", "part", "param"),
    [
        ("chat", {"type": "file", "file": {"file_id": "f"}}, "file.file_id"),
        ("chat", {"type": "file", "file": {}}, "file.file_data"),
        (
            "chat",
            {"type": "file", "file": {"file_data": "data:application/pdf,x"}},
            "file.file_data",
        ),
        ("chat", {"type": "file", "file": {"file_data": "§"}}, "file.file_data"),
        ("chat", {"type": "file", "file": {"file_data": NOTES}}, "file.file_data"),
        (
            "chat",
            {"type": "file", "file": {"file_data": "data:application/zip;base64,AAAA"}},
            "file.file_data",
        ),
        (
            "chat",
            {"type": "file", "file": {"file_data": "data:text/plain;base64,/w=="}},
            "file.file_data",
        ),
        (
            "chat",
            {"type": "input_audio", "input_audio": {"data": WAV, "format": "ogg"}},
            "input_audio.format",
        ),
        (
            "chat",
            {"type": "input_audio", "input_audio": {"data": "§", "format": "wav"}},
            "input_audio.data",
        ),
        ("responses", {"type": "input_file", "file_id": "f"}, "file_id"),
        ("responses", {"type": "input_file", "file_url": "http://169.254.169.254/"}, "file_url"),
        ("messages", document(type="url", url="http://169.254.169.254/"), "source.type"),
        ("messages", document(type="file", file_id="f"), "source.type"),
        (
            "messages",
            {**document(type="text", data="x"), "citations": {"enabled": True}},
            "citations.enabled",
        ),
        (
            "messages",
            document(type="base64", media_type="application/pdf", data=NOTES),
            "source.data",
        ),
    ],
)
async def test_what_cannot_be_read_is_refused_by_its_path(dialect, part, param):
    state, bob = app_state_of()
    path, body = asks(dialect, part)
    async with Serving(state) as server:
        status, _, got = await server.post(path, json=body)
    assert status == 400, got
    assert got["error"]["param"].endswith(f"content[0].{param}")
    assert not bob.requests


async def test_only_a_users_message_holds_files():
    body = {"model": "worker/ada", "messages": [{"role": "system", "content": FILES["chat"][:1]}]}
    async with Serving(scripted_state({"ada": ScriptedClient([])})) as server:
        status, _, got = await server.post(json=body)
    assert (status, got["error"]["param"]) == (400, "messages[0].content[0].type")


def request_of(*parts):
    return Request(messages=(Message(role=Role.USER, parts=(Text("What is it?"), *parts)),))


async def test_openai_is_sent_files_and_recordings():
    async with FakeOpenAI("Seen.") as fake, HttpTransport() as http:
        ada = Worker(id=WorkerId("ada"), model="gpt-audio")
        client = OpenAIChatClient(ada, http, base_url=fake.url, key=Secret(KEY))
        await client.complete(request_of(PDF_FILE, WAV_AUDIO))
    assert fake.wrong == []
    assert fake.requests[0].body["messages"][0]["content"][1:] == [
        {
            "type": "file",
            "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"},
        },
        {"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}},
    ]


async def test_anthropic_is_sent_documents():
    async with FakeAnthropic("Seen.") as fake, HttpTransport() as http:
        ada = Worker(id=WorkerId("ada"), model="claude-sonnet-4-5")
        client = AnthropicClient(ada, http, base_url=fake.origin, key=Secret(KEY))
        await client.complete(request_of(PDF_FILE))
        with pytest.raises(BadRequestError, match="do not accept audio"):
            await client.complete(request_of(WAV_AUDIO))
    assert fake.wrong == []
    assert fake.requests[0].body["messages"][0]["content"][1] == {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
        "title": "a.pdf",
    }


async def test_gemini_is_sent_inline_data():
    async with FakeGemini("Seen.") as fake, HttpTransport() as http:
        ada = Worker(id=WorkerId("ada"), model="gemini-2.5-flash")
        client = GeminiClient(ada, http, base_url=f"{fake.origin}/v1beta", key=Secret(KEY))
        await client.complete(request_of(PDF_FILE, WAV_AUDIO))
    assert fake.wrong == []
    assert fake.requests[0].body["contents"][0]["parts"][1:] == [
        {"inlineData": {"mimeType": "application/pdf", "data": PDF}},
        {"inlineData": {"mimeType": "audio/wav", "data": WAV}},
    ]


async def test_a_server_without_files_says_so():
    async with HttpTransport() as http:
        ada = Worker(id=WorkerId("ada"), model="m")
        client = OpenAIChatClient(
            ada, http, base_url="http://127.0.0.1:1/v1", dialect=COMPATIBLE_DIALECT
        )
        with pytest.raises(BadRequestError, match="does not accept files"):
            await client.complete(request_of(PDF_FILE))


def test_what_is_attached_is_paid_for():
    ada = Worker(id=WorkerId("ada"), model="m", price=PRICE)
    bare = bound_call_cost(request_of(), ada, PRICE).input_usd
    assert bound_call_cost(request_of(PDF_FILE), ada, PRICE).input_usd > bare * 100
    long = Audio(data="A" * 100_000, format="mp3")
    assert bound_call_cost(request_of(long), ada, PRICE).input_usd >= bare + PRICE.input / 10


def blind_house(conductor=None):
    """A model that sees and one that does not, which a workflow asks in this order."""
    pool = Pool(
        (
            Worker(id=WorkerId("eye"), model="eye", price=PRICE, tags=("vision",)),
            Worker(id=WorkerId("mole"), model="mole", price=PRICE),
        )
    )
    clients = {
        "eye": ScriptedClient(lambda _: "It says STOP."),
        "mole": ScriptedClient(lambda _: "Stop."),
    }
    conductor = conductor or sequential_chain(["Describe it.", "Answer."], ["eye", "mole"])
    return server_state(pool, clients, served_models(pool, conductor)), clients


SIGN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


async def test_a_text_only_worker_reads_what_the_one_that_sees_has_written():
    state, clients = blind_house()
    async with Serving(state) as server:
        path, body = asks("chat", {"type": "text", "text": "What does it say?"}, SIGN)
        status, _, got = await server.post(path, json=body)
        assert status == 200 and got["choices"][0]["message"]["content"] == "Stop.", got
        for model in ("batuta-mini", "worker/mole"):
            status, _, got = await server.post(path, json={**body, "model": model})
            assert status == (200 if model == "batuta-mini" else 400)
    assert len(clients["mole"].requests) == 1
    (told,) = clients["mole"].requests[0].messages
    assert not told.images and "It says STOP." in told.text
    assert all(request.messages[-1].images for request in clients["eye"].requests)


@pytest.mark.parametrize("access", [[0], []])
async def test_a_workflow_by_hand_has_no_step_that_knows_nothing_of_the_picture(access):
    state, clients = blind_house()
    steps = [
        {"worker": "eye", "subtask": "Describe it.", "access": []},
        {"worker": "mole", "subtask": "Answer.", "access": access},
    ]
    async with Serving(state) as server:
        path, body = asks("chat", {"type": "text", "text": "What does it say?"}, SIGN)
        options = {"workflow": {"steps": steps}}
        status, _, got = await server.post(path, json={**body, "orchestration": options})
    if access:
        assert status == 200 and clients["mole"].requests
        return
    assert status == 400 and got["error"]["param"] == "orchestration.workflow.steps[1]"
    assert "mole cannot take what is attached" in got["error"]["message"]
    assert not clients["eye"].requests
