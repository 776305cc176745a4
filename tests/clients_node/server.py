"""A gateway over scripted workers that call tools and fill schemas; tells its URL and serves.

python server.py [PORT]
"""

import re
import sys
import tempfile
from dataclasses import replace
from decimal import Decimal

import anyio
import orjson

from batuta.clients import ScriptedClient
from batuta.conductors import sequential_chain
from batuta.core import Finish, Pool, Price, Reply, Role, ToolCall, Usage, Worker, WorkerId
from batuta.gateway import Catalogue, ServerState, run_server, served_models
from batuta.jobs import open_jobs
from batuta.store import Store

PLAIN = {"boolean": True, "null": None}
SHELLS = ("exec_command", "shell", "Bash")
USAGE = Usage(calls=1, input=50, cached=0, cache_write=0, output=20, reasoning=0)


def fill(schema, text=""):
    """A value of the JSON schema, with the number or the quoted words of the text where one fits."""
    if "const" in schema or "enum" in schema:
        return schema.get("const", *schema.get("enum", [])[:1])
    kind = schema.get("type")
    if kind == "object":
        wanted = schema.get("required", [])
        known = schema.get("properties", {})
        return {name: fill(one, text) for name, one in known.items() if name in wanted}
    if kind == "array":
        return [fill(schema.get("items", {}), text)]
    if kind in {"integer", "number"}:
        return int((re.findall(r"\d+", text) or ["1"])[0])
    quoted = re.findall(r"'([^']+)'", text) or ["echo hello"]
    return PLAIN.get(kind, quoted[0])


def formed(form, text):
    """A value of that form; without a schema, an object with the quoted names."""
    if form.schema:
        return fill(form.schema, text)
    return dict.fromkeys(re.findall(r"'([^']+)'", text), "echo hello")


def answer(request):
    """What is said, up to as many words as tokens are allowed."""
    reply, most = whole_answer(request), request.sampling.max_tokens
    words = reply.text.split(" ")
    if reply.tool_calls or request.response_format or most is None:
        return reply
    spent = replace(USAGE, output=min(USAGE.output, most))
    if len(words) <= most:
        return replace(reply, usage=spent)
    return replace(reply, text=" ".join(words[:most]), finish=Finish.LENGTH, usage=spent)


def whole_answer(request):
    """A tool's call if one is offered and none was made, else words."""
    last = request.messages[-1]
    asked = [message.text for message in request.messages if message.role is Role.USER][-1]
    if request.response_format:
        return Reply(
            text=orjson.dumps(formed(request.response_format, asked)).decode(), usage=USAGE
        )
    if last.role is Role.TOOL:
        return Reply(text=f"Done: {last.parts[0].content[:200]}", usage=USAGE)
    if request.tools and request.tool_choice != "none":
        named = {tool.name: tool for tool in request.tools}
        wanted = next((name for name in SHELLS if name in named), request.tools[0].name)
        arguments = orjson.dumps(fill(named[wanted].parameters, asked)).decode()
        calls = (ToolCall(id="call_1", name=wanted, arguments=arguments),)
        return Reply(text="", tool_calls=calls, usage=USAGE, finish=Finish.TOOL_CALLS)
    names = re.findall(r"name is (\w+)", " ".join(message.text for message in request.messages))
    return Reply(text=f"Hello {names[0] if names else 'there'}, I am ready.", usage=USAGE)


def tell(url):
    """Lets whoever started it know where it is."""
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()


async def main():
    """Serves until it is stopped."""
    price, names = Price(input=Decimal(1), output=Decimal(2)), ("ada", "bob")
    pool = Pool(
        tuple(Worker(id=WorkerId(n), model=n, tags=("vision", "tools"), price=price) for n in names)
    )
    clients = {WorkerId(name): ScriptedClient(answer) for name in names}
    models = served_models(pool, sequential_chain(["Think.", "Answer."], list(names)))
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    with tempfile.TemporaryDirectory() as folder:
        async with Store(f"{folder}/runs.db") as store, open_jobs(f"{folder}/jobs.db") as jobs:
            app_state = ServerState(
                catalogue=Catalogue(pool=pool, clients=clients, models=models),
                store=store,
                jobs=jobs,
            )
            await run_server(app_state, port=port, on_ready=tell, grace_seconds=0)


if __name__ == "__main__":
    anyio.run(main)
