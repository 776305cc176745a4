"""Files in and out of programs: those that a request names are read, and what is written can be fetched."""

from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from batuta.clients import HttpTransport, ScriptedClient
from batuta.clients.limits import CallLimiter, RateLimitedClient
from batuta.config.tool_settings import PythonSetting, ToolsSetting
from batuta.config.tools import open_served_tools
from batuta.core import (
    Finish,
    Pool,
    Question,
    Reply,
    Role,
    ToolCall,
    ToolResult,
    Usage,
    Worker,
    WorkerId,
)
from batuta.core.formatting import folder_names
from batuta.core.server_tools import CODE_INTERPRETER, FILE_SEARCH, RequestedTool
from batuta.gateway.access.caller import Caller
from batuta.gateway.serving.models import served_models
from batuta.gateway.serving.parsed_call import ParsedCall
from batuta.gateway.serving.uploaded_files import WRITTEN_PURPOSE, FileLimits, UploadedFiles
from batuta.sandbox.notebook import MAX_WRITTEN
from batuta.sandbox.python_worker import PythonWorker
from fakes.sdks import anthropic
from gateway.keyed_server import KeyedServer
from gateway.live_server import Serving, scripted_state, sequential_chain, server_state
from gateway.test_files import upload

pytestmark = pytest.mark.anyio
LIMITS = FileLimits(
    max_bytes=2_000_000, tenant_files=30, tenant_bytes=5_000_000, keep_seconds=None, max_characters=5000
)  # fmt: skip
TABLE = b"place,opened\nImola,1822\nCassel,1790\n"
DOUBLE = "open('out.csv', 'w').write(open('table.csv').read() * 2); print('done')"
CONTAINER = {"type": "code_interpreter", "container": {"type": "auto"}}
EXECUTION = {"type": "code_execution_20250825", "name": "code_execution"}


def programs(*codes, answer="See out.csv."):
    """A model that runs these programs, one a turn, and then answers."""

    def reply(request):
        done = sum(message.role is Role.TOOL for message in request.messages)
        if done == len(codes):
            return Reply(text=answer, usage=Usage(calls=1))
        told = orjson.dumps({"code": codes[done]}).decode()
        call = ToolCall(id=f"call_{done}", name="code_interpreter", arguments=told)
        return Reply(text="", tool_calls=(call,), finish=Finish.TOOL_CALLS, usage=Usage(calls=1))

    return ScriptedClient(reply)


def told(ada) -> str:
    """What the model was told of its last program."""
    return ada.requests[-1].messages[-1].parts[0].content


@asynccontextmanager
async def serving(
    store, ada, limits: FileLimits | None = LIMITS, interpreter="", background=False, **more
):
    async with HttpTransport() as http:
        setting = PythonSetting(server_tool=True, interpreter=interpreter)
        offered = open_served_tools(ToolsSetting(python=setting), http, {})
        state = scripted_state(
            {"ada": ada}, store=store, file_limits=limits, server_tools=offered, **more
        )
        async with Serving(state, background=background) as server:
            yield server


async def test_a_response_reads_a_file_and_what_it_writes_is_fetched(store):
    ada = programs(DOUBLE)
    async with serving(store, ada) as server:
        _, made = await upload(server, "table.csv", TABLE)
        tool = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": [made["id"]]}}
        body: Any = {"model": "worker/ada", "input": "Double it.", "tools": [tool]}
        api = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)
        async with api:
            for stream in (False, True):
                got: Any
                if stream:
                    events: list[Any] = [
                        one async for one in await api.responses.create(**body, stream=True)
                    ]
                    got = events[-1].response
                    kinds = [one.type for one in events]
                    assert "response.output_text.annotation.added" in kinds
                else:
                    got = await api.responses.create(**body)
                call, message = got.output
                (cited,) = message.content[0].annotations
                assert (cited.type, cited.filename) == ("container_file_citation", "out.csv")
                assert message.content[0].text[cited.start_index : cited.end_index] == "out.csv"
                assert cited.container_id == call.container_id
                content = await api.containers.files.content.retrieve(
                    cited.file_id, container_id=cited.container_id
                )
                assert content.content == TABLE * 2
                assert (await api.files.content(cited.file_id)).content == TABLE * 2
            await api.files.delete(cited.file_id)
            with pytest.raises(openai.NotFoundError):
                await api.containers.files.content.retrieve(
                    cited.file_id, container_id=cited.container_id
                )
    assert "working folder: table.csv." in ada.requests[0].tools[0].description
    assert f"out.csv ({cited.file_id})" in told(ada) and "table.csv" not in told(ada)
    (left,) = [one for one in await store.files.list("local") if one.purpose == WRITTEN_PURPOSE]
    assert left.expires is not None


async def test_a_message_reads_an_upload_and_has_the_file_in_its_result(store):
    ada = programs(DOUBLE)
    async with serving(store, ada) as server:
        _, made = await upload(server, "table.csv", TABLE)
        said = [
            {"type": "text", "text": "Double it."},
            {"type": "container_upload", "file_id": made["id"]},
        ]
        body: Any = {
            "model": "worker/ada",
            "max_tokens": 500,
            "messages": [{"role": "user", "content": said}],
            "tools": [EXECUTION],
        }
        api = anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0)
        async with api:
            got: Any = await api.messages.create(**body)
            (written,) = got.content[1].content.content
            assert written.type == "code_execution_output"
            downloaded = await api.beta.files.download(written.file_id)
            assert await downloaded.read() == TABLE * 2
            async with api.messages.stream(**body) as stream:
                streamed: Any = await stream.get_final_message()
            assert streamed.content[1].content.content[0].type == "code_execution_output"
    assert "The file table.csv" in ada.requests[0].messages[-1].text
    assert TABLE.decode() not in ada.requests[0].messages[-1].text


@pytest.mark.parametrize("given", ["file-of-others", "../../etc/passwd", "all"])
async def test_a_file_that_is_not_here_is_refused(store, given):
    async with serving(store, programs(DOUBLE)) as server:
        tool = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": [given]}}
        body = {"model": "worker/ada", "input": "x", "tools": [tool]}
        status, _, said = await server.post("/v1/responses", json=body)
        assert (status, said["error"]["param"]) == (
            400,
            "tools.code_interpreter.container.file_ids",
        )
        assert f"there is no file '{given}'" in said["error"]["message"]


async def test_too_much_to_read_is_refused_before_anything_runs(store):
    wide = replace(LIMITS, max_bytes=12_000_000, tenant_bytes=50_000_000)
    ada = programs(DOUBLE)
    async with serving(store, ada, wide) as server:
        ids = [(await upload(server, f"{n}.bin", b"\0" * 11_000_000))[1]["id"] for n in range(2)]
        tool = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": ids}}
        body = {"model": "worker/ada", "input": "x", "tools": [tool]}
        status, _, said = await server.post("/v1/responses", json=body)
    assert status == 400 and "may read at most 20000000 bytes" in said["error"]["message"]
    assert not ada.requests


async def test_another_tenants_files_are_neither_read_nor_fetched(store):
    ada = programs(DOUBLE)
    keyed = KeyedServer(store)
    async with serving(store, ada, authenticator=keyed.gate) as server:
        keyed.serving = server
        mine, other = await keyed.key("acme"), await keyed.key("other")
        head = {"authorization": f"Bearer {mine}"}
        _, made = await upload(server, "table.csv", TABLE, headers=head)
        tool = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": [made["id"]]}}
        body = {"model": "worker/ada", "input": "x", "tools": [tool]}
        status, _, said = await keyed.ask(other, "/v1/responses", json=body)
        assert status == 400 and "there is no file" in said["error"]["message"]
        status, _, got = await keyed.ask(mine, "/v1/responses", json=body)
        (cited,) = got["output"][1]["content"][0]["annotations"]
        for path in ("/v1/files/{}/content", "/v1/containers/cntr_x/files/{}/content"):
            there = path.format(cited["file_id"])
            assert (await keyed.ask(other, there, "GET"))[0] == 404
            async with server.http.get(there) as response:
                assert response.status == 401
            async with server.http.get(there, headers=head) as response:
                assert await response.read() == TABLE * 2


MANY = f"""
for n in range({MAX_WRITTEN + 3}):
    open(f'{{n:02}}.txt', 'w').write(str(n))
open('zz.bin', 'wb').write(bytes(9_000_000))
"""
ODD = r"""
import os
open('.hidden', 'w').write('x')
os.symlink('/etc/passwd', 'link.txt')
os.mkfifo('pipe')
open('a' * 200 + '.txt', 'w').write('long')
os.makedirs('in/side'); open('in/side/out.csv', 'w').write('1')
open('out.csv', 'w').write('2')
os.chmod('out.csv', 0)
"""


LAST = "import os, sys\nopen('after.txt', 'w').write('x')\nos.chdir('/')\nsys.exit(4)"


async def test_files_of_programs_are_bounded_and_odd_ones_left_out(store):
    ada = programs(MANY, ODD, LAST)
    async with serving(store, ada) as server:
        body = {"model": "worker/ada", "input": "x", "tools": [CONTAINER]}
        status, _, got = await server.post("/v1/responses", json=body)
        assert status == 200, got
    names = [one["filename"] for one in got["orchestration"]["files"]]
    assert names[:MAX_WRITTEN] == [f"{n:02}.txt" for n in range(MAX_WRITTEN)]
    kept = ["a" * 56 + ".txt", "after.txt", "out.csv"]
    # where Landlock holds the program it may change no modes, so that its other file can be read
    assert sorted(names[MAX_WRITTEN:]) in (kept, ["2-out.csv", *kept])
    answers = (m.parts[0] for m in ada.requests[-1].messages if m.role is Role.TOOL)
    results = [one.content for one in answers if isinstance(one, ToolResult)]
    assert (
        "zz.bin is not kept: a program may write at most 10 files, of 8 MB together." in results[0]
    )
    assert "ended with status 4" in results[2]


async def test_without_room_a_file_is_told_not_to_be_kept(store):
    tight = replace(LIMITS, tenant_files=1)
    ada = programs("open('a.txt', 'w').write('a'); open('b.txt', 'w').write('b')")
    async with serving(store, ada, tight) as server:
        body = {"model": "worker/ada", "input": "x", "tools": [CONTAINER]}
        _, _, got = await server.post("/v1/responses", json=body)
    assert [one["filename"] for one in got["orchestration"]["files"]] == ["a.txt"]
    assert "b.txt is not kept: there is no room for it" in told(ada)


async def test_where_no_files_are_kept_programs_run_as_before(store):
    ada = programs("open('a.txt', 'w').write('a'); print('ran')")
    async with serving(store, ada, None) as server:
        body = {"model": "worker/ada", "input": "x", "tools": [CONTAINER]}
        status, _, got = await server.post("/v1/responses", json=body)
        assert status == 200 and got["output"][1]["content"][0]["annotations"] == []
        body["tools"] = [
            {"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file-1"]}}
        ]
        status, _, said = await server.post("/v1/responses", json=body)
        assert status == 400 and "keeps no files" in said["error"]["message"]


def program_server(store, writes):
    """A model that writes a program, and a worker that runs it."""
    clients: dict[str, Any] = {
        "ada": ScriptedClient(lambda _: Reply(text=f"```python\n{writes}\n```")),
        "python": RateLimitedClient(PythonWorker(), CallLimiter(1, None, None)),
    }
    pool = Pool(
        (
            Worker(id=WorkerId("ada"), model="ada"),
            Worker(id=WorkerId("python"), model="python", tags=("program",), description="Runs."),
        )
    )
    conductor = sequential_chain(["Write it.", "Run it."], ["ada", "python"])
    models = served_models(pool, conductor)
    return server_state(pool, clients, models, store=store, file_limits=LIMITS), clients["ada"]


@pytest.mark.parametrize("dialect", ["chat", "messages", "responses"])
async def test_a_worker_that_runs_programs_has_the_files_too(store, dialect):
    state, _ = program_server(store, DOUBLE)
    async with Serving(state) as server:
        _, made = await upload(server, "table.csv", TABLE)
        part: dict[str, Any]
        match dialect:
            case "chat":
                part = {"type": "file", "file": {"file_id": made["id"]}}
                path, body = (
                    "/v1/chat/completions",
                    {"messages": [{"role": "user", "content": [part]}]},
                )
            case "messages":
                part = {"type": "document", "source": {"type": "file", "file_id": made["id"]}}
                said = [{"role": "user", "content": [part]}]
                path, body = "/v1/messages", {"max_tokens": 99, "messages": said}
            case _:
                part = {"type": "input_file", "file_id": made["id"]}
                path, body = "/v1/responses", {"input": [{"role": "user", "content": [part]}]}
        status, _, got = await server.post(path, json={"model": "batuta-ultra", **body})
        assert status == 200, got
        (file,) = got["orchestration"]["files"]
        async with server.http.get(f"/v1/files/{file['id']}/content") as response:
            assert await response.read() == TABLE * 2
    assert f"out.csv ({file['id']})" in orjson.dumps(got).decode()
    native = {"messages": "code_execution_output", "responses": "container_file_citation"}
    assert native.get(dialect, "") in orjson.dumps(got).decode()


async def test_a_background_response_has_its_files(store):
    state, _ = program_server(store, DOUBLE)
    async with Serving(state, background=True) as server:
        _, made = await upload(server, "table.csv", TABLE)
        part = {"type": "input_file", "file_id": made["id"]}
        body: Any = {"model": "batuta-ultra", "input": [{"role": "user", "content": [part]}]}
        api = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)
        async with api:
            got = await api.responses.create(**body, background=True)
            while got.status in {"queued", "in_progress"}:
                got = await api.responses.retrieve(got.id)
    assert got.status == "completed" and "out.csv (file-" in got.output_text


def test_names_in_a_folder_differ():
    assert folder_names(["a.csv", "a.csv", "2-a.csv", "x" * 99]) == [
        "a.csv",
        "2-a.csv",
        "2-2-a.csv",
        "x" * 60,
    ]


DRAW = "import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.show()\nprint('drawn')"


@pytest.mark.slow
async def test_a_message_has_the_pictures_that_matplotlib_drew(store):
    """As files of the result where files are kept, as the dialect has them; else as blocks after it."""
    plots = pytest.importorskip("matplotlib")
    python = str(Path(plots.__file__).parents[4] / "bin" / "python")  # the one that has it
    body: Any = {
        "model": "worker/ada", "max_tokens": 500, "tools": [EXECUTION],
        "messages": [{"role": "user", "content": "Draw it."}],
    }  # fmt: skip
    for kept in (True, False):
        ada = programs(DRAW, answer="It is drawn.")
        async with serving(store, ada, LIMITS if kept else None, python) as server:
            api = anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0)
            async with api:
                whole: Any = await api.messages.create(**body)
                async with api.messages.stream(**body) as stream:
                    streamed: Any = await stream.get_final_message()
                for got in (whole, streamed):
                    result = got.content[1].content
                    assert result.stdout == "drawn\n", result.stderr
                    assert got.content[-1].text == "It is drawn."
                    if kept:
                        (named,) = result.content
                        file = await api.beta.files.download(named.file_id)
                        assert (await file.read()).startswith(b"\x89PNG")
                        about = await api.beta.files.retrieve_metadata(named.file_id)
                        assert about.filename == "picture-1.png" and len(got.content) == 3
                    else:
                        picture = got.content[2]
                        assert (picture.type, result.content) == ("image", [])
                        assert picture.source["data"].startswith("iVBORw0KGgo")


LISTED = "import os; print(sorted(os.listdir()))"


def looking():
    """A model that doubles the table, and lists the folder where it is asked what is there."""

    def reply(request):
        if request.messages[-1].role is Role.TOOL:
            return Reply(text="See out.csv.", usage=Usage(calls=1))
        code = LISTED if "there" in request.messages[-1].text else DOUBLE
        made = orjson.dumps({"code": code}).decode()
        call = ToolCall(id="call_0", name="code_interpreter", arguments=made)
        return Reply(text="", tool_calls=(call,), finish=Finish.TOOL_CALLS, usage=Usage(calls=1))

    return ScriptedClient(reply)


@pytest.mark.parametrize("background", [False, True])
async def test_files_of_earlier_turns_are_there_in_a_later_one(store, background):
    """By the previous response, its container or its items sent again; of nothing, nothing."""
    ada = looking()
    async with serving(store, ada, background=background) as server:
        _, made = await upload(server, "table.csv", TABLE)
        tool = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": [made["id"]]}}
        api: Any = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)
        async with api:

            async def create(**fields):
                got = await api.responses.create(
                    model="worker/ada", background=background, **fields
                )
                while got.status in {"queued", "in_progress"}:
                    got = await api.responses.retrieve(got.id)
                return got

            first = await create(input="Double it.", tools=[tool])
            again = [each.model_dump(exclude_none=True) for each in first.output]
            asked = {"role": "user", "content": "What is there?"}
            call = next(each for each in first.output if each.type == "code_interpreter_call")
            both, none = "['out.csv', 'table.csv']", "[]"
            container = {"type": "code_interpreter", "container": call.container_id}
            for fields, names in (
                ({"previous_response_id": first.id, "input": [asked], "tools": [CONTAINER]}, both),
                ({"input": [*again, asked], "tools": [CONTAINER]}, "['out.csv']"),
                ({"input": [asked], "tools": [container]}, both),
                ({"input": [asked], "tools": [{**container, "container": "cntr_none"}]}, none),
                ({"input": [asked], "tools": [CONTAINER]}, none),
            ):
                await create(**fields)
                assert told(ada).startswith(names), fields
            await api.files.delete(made["id"])
            fields = {"input": [asked], "tools": [CONTAINER], "previous_response_id": first.id}
            await create(**fields)
            assert told(ada).startswith("['out.csv']")


async def test_a_file_of_an_earlier_message_is_there_in_a_later_one(store):
    ada = looking()
    async with serving(store, ada) as server:
        _, made = await upload(server, "table.csv", TABLE)
        given = {"type": "container_upload", "file_id": made["id"]}
        first = {"role": "user", "content": [{"type": "text", "text": "Double it."}, given]}
        body: Any = {"model": "worker/ada", "max_tokens": 500, "tools": [EXECUTION]}
        api: Any = anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0)
        async with api:
            got = await api.messages.create(**body, messages=[first])
            said = [block.model_dump(exclude_none=True) for block in got.content]
            turns = [first, {"role": "assistant", "content": said}]
            asked = {"role": "user", "content": "What is there?"}
            await api.messages.create(**body, messages=[*turns, asked])
    assert told(ada).startswith("['out.csv', 'table.csv']")


async def test_no_earlier_turn_opens_another_tenants_file(store):
    """Neither the container of another tenant's response nor a citation of its file, sent as an item."""
    ada = looking()
    keyed = KeyedServer(store)
    async with serving(store, ada, authenticator=keyed.gate) as server:
        keyed.serving = server
        mine, other = await keyed.key("acme"), await keyed.key("other")
        body = {"model": "worker/ada", "tools": [CONTAINER]}
        writing = "Write it: there is none."
        first = {**body, "input": writing}
        ada._say = programs("open('out.csv', 'w').write('x')")._say
        _, _, got = await keyed.ask(mine, "/v1/responses", json=first)
        assert got["output"][-1]["content"][0]["annotations"]
        ada._say = looking()._say
        asked = {"role": "user", "content": "What is there?"}
        tool = {"type": "code_interpreter", "container": got["output"][0]["container_id"]}
        for fields in ({"input": [*got["output"], asked]}, {"input": [asked], "tools": [tool]}):
            for key, names in ((other, "[]"), (mine, "['out.csv']")):
                status, _, _ = await keyed.ask(key, "/v1/responses", json=body | fields)
                assert status == 200 and told(ada).startswith(names), fields


async def test_files_that_are_searched_take_no_place_of_earlier_ones(store):
    caller = Caller(tenant="acme")
    files = UploadedFiles(store, LIMITS)
    table = files.find_named(caller, ())
    assert table is not None
    kept = [(await table.keep("out.csv", b"x")).id for _ in range(2)]
    searched = (kept[0], *(f"file-{number}" for number in range(100)))
    call = ParsedCall(
        model="m",
        question=Question.of("hi"),
        server_tools=(
            RequestedTool(tool=FILE_SEARCH, field="a", file_ids=searched),
            RequestedTool(tool=CODE_INTERPRETER, field="b"),
        ),
        earlier_files=(kept[0],),
    )
    bound = await files.bind(call, caller)
    assert bound.files == (kept[0],) and bound.server_tools[1].file_names == ("out.csv",)
