"""What an operator sees: metrics, logs and spans. Never content, never a key."""

import logging
import threading
import time

import anyio
import orjson
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from batuta.clients import ScriptedClient
from batuta.core import Reply
from batuta.errors import ConfigError, ProviderOverloadedError
from batuta.gateway.access.caller import Authenticator
from batuta.gateway.telemetry.logs import JsonLogFormatter
from batuta.gateway.telemetry.metrics import Metrics
from batuta.gateway.telemetry.spans import (
    RunSpanExporter,
    open_span_exporter,
    parse_parent_span,
    spans_of,
)
from store.strategies import make_run

from .live_server import HI, PRICE, Serving, scripted_state, stored

SECRET = "the-secret-question"
ASK = {"model": "batuta-ultra", "messages": [{"role": "user", "content": SECRET}]}


async def samples(server, **options):
    async with server.http.get("/metrics", **options) as response:
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        text = (await response.read()).decode()
    assert SECRET not in text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name, frozenset(sample.labels.items())] = sample.value
    return found


def value(found, name, **labels):
    return found.get((f"batuta_{name}", frozenset(labels.items())))


async def test_metrics_count_requests_runs_steps_tokens_and_dollars():
    said = iter([ProviderOverloadedError("busy"), "thought", "answer"])

    def say(_):
        line = next(said)
        return line if isinstance(line, Exception) else Reply(text=line)

    async with Serving(
        scripted_state(
            {
                "ada": ScriptedClient(say, price=PRICE),
                "bob": ScriptedClient(lambda _: "thought", price=PRICE),
            }
        )
    ) as server:
        assert (await server.post(json=ASK))[0] == 200
        assert (await server.post(json={"model": "nobody", "messages": HI}))[0] == 404
        found = await samples(server)
    chat = "/v1/chat/completions"
    assert value(found, "requests_total", route=chat, method="POST", status="200") == 1
    assert value(found, "requests_total", route=chat, method="POST", status="404") == 1
    assert value(found, "request_seconds_count", route=chat) == 2
    assert value(found, "refusals_total", code="model_not_found") == 1
    runs = {labels: v for (name, labels), v in found.items() if name == "batuta_runs_total"}
    assert sum(runs.values()) == 1
    assert value(found, "rounds_total", model="batuta-ultra") == 1
    assert value(found, "failed_attempts_total", worker="ada", code="overloaded") == 1
    assert value(found, "substitutions_total", worker="ada") == 1
    tokens = sum(v for (name, _), v in found.items() if name == "batuta_tokens_total")
    dollars = sum(v for (name, _), v in found.items() if name == "batuta_dollars_total")
    assert tokens > 0 and dollars > 0
    assert value(found, "running") == 0 and value(found, "waiting") == 0
    assert ("process_resident_memory_bytes", frozenset()) in found


async def test_the_first_word_of_a_stream_is_timed_once():
    async with Serving(
        scripted_state({"ada": ScriptedClient(["thought", "one two three four"], chunk=3)})
    ) as server:
        await server.frames(model="batuta-ultra")
        found = await samples(server)
    assert value(found, "first_token_seconds_count", model="batuta-ultra") == 1


async def test_no_first_word_is_timed_of_an_answer_that_nobody_waits_for(store):
    clients = {"ada": ScriptedClient(lambda _: "one two three", chunk=3)}
    async with Serving(scripted_state(clients, store=store), background=True) as server:
        for told in ({}, {"stream": True}):
            body = {"model": "worker/ada", "input": "x", "background": True, **told}
            async with server.http.post("/v1/responses", json=body) as response:
                await response.read()
        await stored(store, 2)
        found = await samples(server)
    assert not [name for name, _ in found if name == "batuta_first_token_seconds_count"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/embeddings",
        "/v1/runs/{id}/feedback",
    ],
)
@pytest.mark.parametrize("more", [b"", b"Idempotency-Key: k\r\n"], ids=["", "repeatable"])
async def test_whoever_goes_in_the_middle_of_the_body_is_counted_and_no_fault(
    path, more, caplog, store
):
    async with Serving(
        scripted_state({"ada": ScriptedClient(lambda _: "hi")}, store=store)
    ) as server:
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 99\r\n".encode()
        async with await anyio.connect_tcp(host, int(port)) as stream:
            await stream.send(
                head + b"Content-Type: application/json\r\n" + more + b'\r\n{"model":'
            )
            await anyio.sleep(0.05)
        with anyio.fail_after(60):
            while ("status", "499") not in {
                label
                for name, labels in await samples(server)
                if name == "batuta_requests_total"
                for label in labels
            }:
                await anyio.sleep(0.02)
    assert not [line for line in caplog.records if line.levelno >= logging.ERROR]


async def test_others_are_served_while_the_metrics_of_many_tenants_are_written():
    metrics = Metrics(dict, dict)
    run = make_run()
    for number in range(3000):
        metrics.count_run(run, f"tenant-{number}")
    turns, texts = 0, []

    async def render():
        texts.append(await metrics.render())
        texts.append(await metrics.render())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(render)
        while len(texts) < 2:
            turns += 1
            metrics.count_run(run, f"late-{turns}")
            await anyio.sleep(0.002)  # each turn makes what is written longer
    assert turns > 3, "it is written in one turn of the loop otherwise"
    last = texts[-1].decode()
    assert 'tenant="tenant-2999"' in last and 'tenant="late-1"' in last


async def test_what_is_answered_before_it_is_routed_counts_at_its_route_too(store):
    """Repeated answers of an Idempotency-Key, and refusals of a host or a caller."""
    path, once = "/v1/chat/completions", {"idempotency-key": "one"}
    state = scripted_state({"ada": ScriptedClient(lambda _: "hi")}, store=store)
    async with Serving(state) as server:
        for _ in range(2):
            assert (await server.post(json=ASK, headers=once))[0] == 200
        for name in ("a", "b"):
            refused = {"host": "elsewhere.example"}
            assert (await server.get(f"/v1/runs/{name}", headers=refused))[0] == 403
        found = await samples(server)
    assert value(found, "requests_total", route=path, method="POST", status="200") == 2
    assert value(found, "requests_total", route="/v1/runs/{id}", method="GET", status="403") == 2


async def test_unknown_paths_share_one_label():
    async with Serving() as server:
        for path in ("/a", "/b", "/v1/c"):
            await server.get(path)
        found = await samples(server)
    assert value(found, "requests_total", route="(none)", method="GET", status="404") == 3


async def test_where_there_is_an_admin_the_metrics_are_the_admins():
    token = "an-admin-token-0123456789"
    app_state = scripted_state(
        {"ada": ScriptedClient([])}, authenticator=Authenticator(admin=token)
    )
    async with Serving(app_state) as server:
        status, body = await server.get("/metrics")
        assert (status, body["error"]["code"]) == (403, "permission_denied")
        await samples(server, headers={"authorization": f"Bearer {token}"})


def tree_lines(tree, depth=0):
    names = ", ".join(sorted(tree.attributes))
    yield f"{'  ' * depth}{tree.name} [{names}]{' !' + tree.error if tree.error else ''}"
    for child in tree.children:
        yield from tree_lines(child, depth + 1)


SNAPSHOT = """\
invoke_workflow batuta-ultra [batuta.cost.usd, batuta.outcome, batuta.run.id, batuta.tenant, gen_ai.operation.name, gen_ai.usage.input_tokens, gen_ai.usage.output_tokens, gen_ai.workflow.name]
  plan chain [batuta.plan.malformed_drafts, batuta.round, gen_ai.agent.name, gen_ai.operation.name]
  invoke_agent bob [batuta.round, batuta.step.access, batuta.step.attempts, batuta.step.index, batuta.step.planned_worker, gen_ai.agent.name, gen_ai.operation.name]
    chat m-ada [batuta.cost.usd, gen_ai.operation.name, gen_ai.request.model, gen_ai.usage.input_tokens, gen_ai.usage.output_tokens] !overloaded
    chat m-bob [batuta.cost.usd, gen_ai.operation.name, gen_ai.request.model, gen_ai.usage.input_tokens, gen_ai.usage.output_tokens]
  invoke_agent bob [batuta.round, batuta.step.access, batuta.step.attempts, batuta.step.index, gen_ai.agent.name, gen_ai.operation.name]
    chat m-bob [batuta.cost.usd, gen_ai.operation.name, gen_ai.request.model, gen_ai.usage.input_tokens, gen_ai.usage.output_tokens]"""


def house_with(store=None, traces=None):
    def busy(_):
        return ProviderOverloadedError("busy")

    return scripted_state(
        {"ada": ScriptedClient(busy), "bob": ScriptedClient(lambda _: "said", price=PRICE)},
        store=store,
        span_exporter=traces,
    )


async def test_names_of_spans_are_a_snapshot(store):
    async with Serving(house_with(store)) as server:
        await server.post(json=ASK)
    run = await store.get((await store.list())[0].id)
    tree = spans_of(run, "local")
    assert "\n".join(tree_lines(tree)) == SNAPSHOT
    assert SECRET not in repr(tree)
    first = tree.children[1].children
    assert first[0].span.end <= first[1].span.start <= first[1].span.end


async def test_spans_are_sent_under_the_callers_span():
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces = RunSpanExporter(provider)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with Serving(house_with(traces=traces)) as server:
        await server.post(json=ASK, headers={"traceparent": parent})
        await server.post(json=ASK)
    spans = exporter.get_finished_spans()
    traces.close()
    assert len(spans) == 14
    roots = [span for span in spans if span.name == "invoke_workflow batuta-ultra"]
    assert f"{roots[0].context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert f"{roots[0].parent.span_id:016x}" == "b7ad6b7169203331"
    assert roots[1].parent is None
    assert all(span.end_time >= span.start_time for span in spans)
    failed = [span for span in spans if span.name == "chat m-ada"]
    assert {span.attributes["error.type"] for span in failed} == {"overloaded"}  # pyright: ignore[reportUnhashable]


@pytest.mark.parametrize(
    "given", [b"", b"00-x", b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01", b"ff" * 40]
)
def test_a_traceparent_that_cannot_be_read_is_none(given):
    assert parse_parent_span(given) is None


def test_a_collector_that_hangs_does_not_keep_the_server_from_its_end():
    hangs, is_asked = threading.Event(), threading.Event()

    class Hanging(InMemorySpanExporter):
        def shutdown(self):
            is_asked.set()
            hangs.wait(60)

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(Hanging()))
    began = time.monotonic()
    RunSpanExporter(provider).close(0.05)
    assert is_asked.wait(60) and time.monotonic() - began < 30
    hangs.set()


async def test_traces_are_off_unless_a_collector_is_named():
    async with open_span_exporter({}) as traces:
        assert traces is None


async def test_a_line_of_json_for_each_request(caplog):
    caplog.set_level(logging.INFO, logger="batuta.requests")
    async with Serving() as server:
        await server.post(json={**ASK, "model": "batuta-mini"}, headers={"x-request-id": "mine"})
        await server.post(json={"model": "nobody", "messages": HI})
    lines = [
        orjson.loads(JsonLogFormatter().format(r))
        for r in caplog.records
        if r.name == "batuta.requests"
    ]
    assert [line["status"] for line in lines] == [200, 404]
    assert lines[0]["request_id"] == "mine" and lines[0]["run_id"].startswith("run_")
    assert lines[0]["route"] == "/v1/chat/completions" and lines[0]["seconds"] >= 0
    assert lines[1]["error"] == "model_not_found"
    assert SECRET not in caplog.text and SECRET not in repr(lines)


def test_a_log_line_hides_keys_and_messages_of_faults():
    record = logging.LogRecord(
        "x", logging.ERROR, "f", 1, "key sk-proj-abcdefghijklmnopqrstuvwxyz012345", (), None
    )
    assert "abcdefghijklmnop" not in JsonLogFormatter().format(record)
    try:
        raise RuntimeError(SECRET)
    except RuntimeError as error:
        record = logging.LogRecord(
            "x", logging.ERROR, "f", 1, "it broke", (), (type(error), error, None)
        )
    line = orjson.loads(JsonLogFormatter().format(record))
    assert line["fault"] == "RuntimeError" and SECRET not in repr(line)


def test_a_collector_without_the_extra_is_told(tmp_path):
    import subprocess
    import sys

    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from batuta.gateway.telemetry.spans import open_span_exporter\n"
        "import anyio\n"
        "anyio.run(open_span_exporter({'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://127.0.0.1:1'}).__aenter__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert ConfigError.__name__ in done.stderr and "install -e '.[otel]'" in done.stderr
