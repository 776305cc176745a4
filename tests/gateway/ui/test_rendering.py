"""What the page is made of, as values: Markdown, formulas, pictures, figures."""

import json
import math
import re
import time
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from batuta.core import (
    Cost,
    Limits,
    Outcome,
    Pool,
    Question,
    Reply,
    Run,
    RunHeader,
    RunId,
    Step,
    ToolCall,
    Worker,
    WorkerId,
    Workflow,
    formatting,
)
from batuta.core.run import Attempt, Failure, GuardrailTriggered
from batuta.engine import conduct
from batuta.gateway.ui import run_view
from batuta.gateway.ui.curves import HEIGHT, WIDTH, draw_charts, find_ticks, mark_steps
from batuta.gateway.ui.learning import (
    LearningPages,
    drop_copies,
    find_evaluations,
    find_reports,
    find_trainings,
    read_report,
    read_samples,
    read_training,
)
from batuta.gateway.ui.pool import count_worker_stats
from batuta.gateway.ui.rendering import _template_environment, compile_templates, render_fragment
from batuta.gateway.ui.workflow_layout import BOX_HEIGHT, draw_workflow
from batuta.gateway.ui.workflow_layout import WIDTH as ACROSS
from batuta.lab.worlds.simulated import rehearsal_config
from batuta.rendering.answer import render_answer
from batuta.rendering.difference import compare_texts, diff_words
from batuta.rendering.markdown import render_markdown, render_mathml
from batuta.store import encode_run
from batuta.store.codec import decode_run
from gateway.ui.learned import write_learning
from gateway.ui.page_server import HOSTILE, QUESTION
from gateway.ui.seen import Seen

TAGS = {
    *("p", "br", "hr", "div", "em", "strong", "s", "code", "pre", "span", "blockquote", "ul", "ol", "li", "a"),
    *("h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td", "math", "mrow", "mi", "mn", "mo"),
    *("mtext", "mspace", "msub", "msup", "msubsup", "mfrac", "msqrt", "mroot", "munder", "mover", "munderover"),
    *("mtable", "mtr", "mtd", "mstyle", "mpadded", "mphantom", "menclose", "mlabeledtr", "ms"),
}  # fmt: skip
SIGNS = st.lists(
    st.sampled_from([*HOSTILE, "<", ">", "&", '"', "'", "`", "```", "$", "$$", "\\(", "\\)", "\\[", "\\]", "\\frac", "{", "}", "^", "_", "[", "]", "(", ")", "!", "javascript:", "https://a.b", "\n", "\n\n", "|", "-", "# ", "    ", "x", "onerror=", "<!--", "\\text", "&lt;"]),
    max_size=25,
).map("".join)  # fmt: skip


@settings(deadline=None)
@given(SIGNS | st.text(max_size=200))
def test_markdown_writes_no_tag_but_its_own(text):
    seen = Seen(str(render_markdown(text)))
    assert seen.tags <= TAGS
    for name, value in seen.attributes:
        assert not name.startswith("on")
        assert name not in {"style", "src", "srcset", "action", "formaction"}
        assert name != "href" or re.match(r"(https?|mailto):", value, re.IGNORECASE)


def test_markdown_shows_what_models_write():
    html = str(
        render_markdown(
            "**b** `c`\n\n| a |\n|--:|\n| 1 |\n\n```python\nif x: pass\n```\n\none\ntwo ~~x~~\n\n# head"
        )
    )
    for part in (
        "<strong>b</strong>",
        '<td class="right">1</td>',
        'class="hl-k"',
        "one<br",
        "<s>x</s>",
        "<h3>head",
    ):
        assert part in html
    assert "<img" not in str(render_markdown("![a](https://elsewhere.invalid/a.png)"))
    assert str(render_markdown("<" * 300_000)).startswith("<pre")
    assert "<<" not in str(render_markdown("<" * 300_000))
    for wide in ("```\nx\n```", "    x", "| a |\n|---|", "$$x$$", "x" * 300_000):
        assert 'tabindex="0"' in str(render_markdown(wide))
    assert re.findall(r"<h\d", str(render_markdown("## a\n\n### b\n\n## c"))) == [
        "<h3",
        "<h4",
        "<h3",
    ]


@pytest.mark.parametrize(
    ("text", "set_"),
    [("$a<b$", True), (r"so \(\frac{1}{2}\)", True), (r"\[ x^2 \]", True), ("$$y$$", True), ("$5 and $10", False), ("a $ b $", False), ("costs $3", False), ("Set $PATH in `$HOME/.bashrc`.", False)],
)  # fmt: skip
def test_formulas_are_told_from_dollars(text, set_):
    assert ("<math" in str(render_markdown(text))) is set_


def test_formulas_smuggle_no_tags():
    shown = render_mathml(r"\text{<script>x</script>} \& \lt a", block=False)
    assert shown is not None
    assert Seen(shown).tags <= TAGS
    assert "&lt;script&gt;" in shown
    for unset in (r"\newcommand{\a}{\b\b}\a", "x" * 5000, r"\frac{", "{" * 300):
        assert render_mathml(unset, block=True) is None


@st.composite
def workflows(draw):
    size = draw(st.integers(1, 5))
    access = [draw(st.sets(st.integers(0, at - 1))) if at else set() for at in range(size)]
    return Workflow(
        tuple(
            Step(subtask="x", worker=WorkerId("a"), access=tuple(sorted(read))) for read in access
        )
    )


@settings(deadline=None)
@given(workflows())
def test_no_box_covers_another_or_an_arrow(workflow):
    picture = draw_workflow(workflow)
    assert len(picture.boxes) == len(workflow)
    assert len(picture.arrows) == sum(len(step.access) for step in workflow.steps)
    for box in picture.boxes:
        assert box.x >= -0.5
        assert box.x + box.width <= ACROSS + 0.5
        assert box.y + BOX_HEIGHT <= picture.height
    for one in picture.boxes:
        for other in picture.boxes:
            apart = one.x + one.width <= other.x + 0.2 or other.x + other.width <= one.x + 0.2
            assert one is other or one.y != other.y or apart
    for arrow in picture.arrows:
        source, target = picture.boxes[arrow.source], picture.boxes[arrow.target]
        assert source.y < target.y
        points = [
            tuple(map(float, pair))
            for pair in re.findall(r"[MC ]?(-?[\d.]+) (-?[\d.]+)(?=[CV]|$)", arrow.path)
        ]
        for x, y in points[1:-1]:
            inside = [
                b for b in picture.boxes if b.x < x < b.x + b.width and b.y <= y < b.y + BOX_HEIGHT
            ]
            assert not inside, (arrow, inside)


@settings(deadline=None)
@given(st.text(max_size=60), st.text(max_size=60))
def test_a_difference_has_both_texts(one, other):
    pieces = diff_words(one, other)
    assert "".join(text for kind, text in pieces if kind != "new") == one
    assert "".join(text for kind, text in pieces if kind != "gone") == other


def test_a_difference_beyond_the_compared_words_is_shown():
    long = f"{99 * 'w'} " * 500
    assert diff_words(long[:20_000] + "5", long[:20_000] + "6")[-2:] == [
        ("gone", "5"),
        ("new", "6"),
    ]
    assert {kind for kind, _ in diff_words("a " * 5000, "a " * 5000)} == {"same"}


def test_figures_tell_what_is_known():
    assert formatting.format_cost(Cost(Decimal(0), 2)) == "unpriced"
    assert formatting.format_cost(Cost(Decimal("0.0011661"), 1)) == "≥ $0.0012"
    assert [formatting.format_usd(Decimal(v)) for v in ("0", "0.25", "3.456", "1234.5")] == [
        "$0",
        "$0.25",
        "$3.46",
        "$1,234",
    ]
    assert [formatting.format_seconds(v) for v in (0.0123, 2.345, 75)] == [
        "12 ms",
        "2.3 s",
        "1 min 15 s",
    ]
    assert [formatting.format_short(v) for v in (0.12345, 123.4, 12345.0, float("nan"))] == [
        "0.123",
        "123",
        "12k",
        "–",
    ]
    assert formatting.format_age(0.0, 7200.0) == "2 h ago"
    assert set(run_view.OUTCOMES) == set(Outcome)


async def test_a_judgement_counts_for_who_gave_the_answer():
    ensemble = rehearsal_config(None, 0.0)
    run = await conduct(
        Question.of(QUESTION), ensemble.conductor, ensemble.pool, ensemble.clients, limits=Limits()
    )
    stored = decode_run(encode_run(run))
    found = count_worker_stats(ensemble.pool, [(stored, 1.0), (stored, 0.0), (stored, None)])
    assert found[run.steps[-1].worker].score == 0.5
    assert sum(len(each.scores) for each in found.values()) == 2


async def test_a_call_that_was_ended_is_no_failure_of_its_worker():
    """Three runs that their user stopped made a healthy worker "down"."""
    ensemble = rehearsal_config(None, 0.0)
    run = await conduct(
        Question.of(QUESTION), ensemble.conductor, ensemble.pool, ensemble.clients, limits=Limits()
    )
    step, cost = run.steps[0], Cost(Decimal("0.5"))

    def count(*codes):
        *before, last = (Failure(code=code, message="m", cost=cost) for code in codes)
        attempts = tuple(Attempt(step.worker, failure, 0.0) for failure in before)
        failed = replace(step, result=last, attempts=attempts)
        own = replace(run, rounds=(replace(run.rounds[0], steps=(failed,)),), reply=None)
        return count_worker_stats(ensemble.pool, [(own, None)])[step.worker]

    ended = count("circuit_open", "outrun", "limit", "cancelled")
    assert (ended.calls, ended.failures, ended.health) == (0, 0, "unknown")
    assert ended.cost.usd == 2, "such a call may have cost something"
    failed = count("timed_out", "rate_limited", "unreachable")
    assert (failed.failures, failed.health, failed.last_failure) == (3, "down", "unreachable")
    declined = count("bad_request", "context_too_long", "policy_blocked")
    assert (declined.failures, declined.health) == (3, "troubled"), "others may be answered"


async def test_a_server_that_stops_does_not_wait_for_all_templates():
    environment = _template_environment()
    known = len(environment.list_templates())
    environment.cache.clear()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(compile_templates)
        while not environment.cache:
            await anyio.sleep(0)
        tasks.cancel_scope.cancel()
    assert len(environment.cache) < known  # pyright: ignore[reportArgumentType]


async def test_no_visitor_waits_for_a_template():
    await compile_templates()
    known = _template_environment().list_templates()
    assert len(known) > 20
    assert len(_template_environment().cache) == len(known)  # pyright: ignore[reportArgumentType]


def test_templates_leave_the_form_of_dollars_to_their_filter():
    environment = _template_environment()
    for name in environment.list_templates():
        source, *_ = environment.loader.get_source(environment, name)
        assert not re.search(r"\$%|%\.\d+[ge]", source), name


def test_a_run_that_waits_for_tools_says_so():
    run = Run(
        header=RunHeader(id=RunId("run_x"), question=Question.of("Q"), pool=Pool((Worker(id=WorkerId("a"), model="a"),)), seed=None, limits=Limits(), conductor="fixed"),
        rounds=(), outcome=Outcome.WAITING, answer=None, reply=Reply(text="", tool_calls=(ToolCall(id="c", name="look", arguments='{"<b>": 1}'),)),
        guards=(GuardrailTriggered(policy="pii", where="input", action="redacted", count=2),),
    )  # fmt: skip
    answers = {run.id: render_markdown("I *look* it up.")}
    said = render_fragment(
        "answer.html.jinja", run=replace(run, answer="I *look* it up."), answers=answers
    )
    assert "I <em>look</em> it up." in said and "look({" in said
    html = render_fragment("answer.html.jinja", run=run, answers={})
    assert "look({&#34;&lt;b&gt;&#34;: 1})" in html
    assert "redacted" in html
    assert "failure" not in html


@settings(deadline=None)
@given(st.lists(st.none() | st.floats() | st.integers(-5, 5), min_size=1, max_size=600))
def test_curves_stay_in_their_charts(values):
    lines = [{"step": at, "reward": value} for at, value in enumerate(values)]
    for chart in draw_charts(lines):
        for x, y in re.findall(r"[ML]([\d.-]+) ([\d.-]+)", chart.curves[0].path):
            assert -0.1 <= float(x) <= WIDTH + 0.1
            assert -0.1 <= float(y) <= HEIGHT + 0.1


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
@example(90071993.46484375, 5.960464477539063e-08)
def test_axes_have_a_few_round_numbers_around_all_values(low, spread):
    high = low + spread
    ticks = find_ticks(low, high)
    assert 2 <= len(ticks) <= 5
    slack = 1e-6 * spread + 2 * math.ulp(max(abs(low), abs(high)))  # what a float can tell
    assert ticks[0] <= low + slack and ticks[-1] >= high - slack
    if spread > max(1e-9, 1e-6 * abs(low)):
        sizes = [f"{later - earlier:.3e}"[0] for earlier, later in pairwise(ticks)]
        assert set(sizes) <= set("125"), "1, 2 or 5 times a power of ten"


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=50, unique=True).map(sorted))
def test_steps_below_a_chart_stand_in_their_order(steps):
    marks = mark_steps(steps)
    assert (marks[0], marks[-1][1]) == ((0.0, steps[0]), steps[-1])
    assert marks == sorted(marks)
    assert {place for place, _ in marks[1:-1]} <= {p for p, _ in marks if 0.18 < p < 0.82}


def test_values_have_the_units_of_their_charts():
    lines = [{"step": n, "right": n / 8, "usd": n / 1000, "step_time": 40.0} for n in range(3)]
    right, dollars, seconds = draw_charts(lines)
    assert right.heights == ["30\u00a0%", "20\u00a0%", "10\u00a0%", "0\u00a0%"]
    assert right.format_value(0.125) == "12.5\u00a0%"
    assert dollars.heights == ["$0.0020", "$0.0015", "$0.0010", "$0.0005", "$0.0000"]
    assert seconds.heights == ["40\u00a0s", "30\u00a0s", "20\u00a0s", "10\u00a0s", "0\u00a0s"]


def test_folders_are_read_as_they_are(tmp_path):
    run, report = write_learning(tmp_path)
    folders = (tmp_path / "learning",)
    found = find_trainings(folders)
    assert [each.name for each in found] == ["mine"]
    training = read_training(found[0], found[0].modified_at + 1)
    assert (training.current_step, training.steps, training.state) == (20, 40, "running")
    assert read_training(found[0], found[0].modified_at + 1e6).state == "stopped"
    assert len(read_samples(found[0])) == 3
    assert [each.path for each in find_reports(folders)] == [report]
    report.joinpath("report.json").write_text('[1, {}, {"systems": {}}]')
    assert len(read_report(find_reports(folders)[0])) == 1
    (run / "metrics.jsonl").write_bytes(b"\xff\n[]\n{}\n")
    assert read_training(find_trainings(folders)[0]).current_step == 0
    assert find_trainings((tmp_path / "nowhere",)) == []


SLOW = {
    "brackets": "[" * 60_000,
    "table": "a|" * 200 + "\n" + "-|" * 200 + "\n" + ("|" * 100 + "\n") * 600,
    "code": "```rst\n" + ("\n  " * 20_000)[:19_990] + "\n```",
    "formulas": "$x$ " * 16_000,
    "headings": "a\n=\n" * 16_000,
}


@pytest.mark.parametrize("name", SLOW)
async def test_an_answer_that_is_slow_to_render_holds_nobody_up(name):
    """On the version before: up to eight seconds in the event loop."""
    await render_answer("warm up")
    began = time.thread_time()
    html = str(await render_answer(SLOW[name]))
    assert time.thread_time() - began < 2
    assert SLOW[name][:20].strip() in html or "<" in html


@pytest.mark.parametrize("text", ["[" * 600, ("|" * 50 + "\n") * 12, "```rst\n" + "\n  " * 190, "$x^" * 200, "*a " * 200, "```cpp\n" + "\n  " * 190])  # fmt: skip
async def test_a_short_answer_is_quick(text):
    await render_answer("warm `up` $x$")
    began = time.thread_time()
    await render_answer(text[:600])
    assert time.thread_time() - began < 2


async def test_a_long_answer_is_rendered_alike():
    text = "# Head\n\n**b** $x^2$\n\n```python\nprint(1)\n```\n" * 30
    assert str(await render_answer(text)) == str(render_markdown(text))


async def test_texts_that_are_slow_to_compare_hold_nobody_up():
    one, other = "a b " * 990, "b a " * 990
    began = time.thread_time()
    pieces = await compare_texts(one, other)
    assert time.thread_time() - began < 2
    assert "".join(text for kind, text in pieces if kind != "new") == one
    assert await compare_texts("a b", "a c") == diff_words("a b", "a c")


def test_dollars_are_drawn_where_some_are_known():
    """A training of workers without a price wrote 0 in earlier versions, and nothing now."""

    def titles(*dollars):
        return [c.title for c in draw_charts([{"step": n, "reward": 1, "usd": usd} for n, usd in enumerate(dollars)])]  # fmt: skip

    assert titles(0, 0.0, None) == ["Reward"]
    assert titles(0, 0.2) == ["Reward", "Dollars a workflow"]


@pytest.mark.parametrize(
    ("latex", "seen"),
    [
        (r"O(n\log n)", "O(n_log_n)"),
        (r"2\sin x", "2_sin_x"),
        (r"\log(n)", "log(n)"),
        (r"\sin^2 x", "sin2_x"),
        (r"n\log_2 n + 1", "n_log2_n+1"),
        (r"n\log\log n", "n_log_log_n"),
        (r"(a+b)\ln c", "(a+b)_ln_c"),
        (r"x\,\log n", "x_log_n"),
        (r"\frac{\ln x}{2}", "ln_x2"),
        (r"y = \cos x", "y=cos_x"),
        ("xy", "xy"),
    ],
)
def test_a_functions_name_stands_apart(latex, seen):
    html = render_mathml(latex, block=False) or ""
    spaced = re.sub(r'<mspace width="0.167em"></mspace>', "_", html)
    assert re.sub(r"<[^>]*>", "", spaced) == seen


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("report.json", '{"systems": {"a": 1}}'),
        ("report.json", '{"systems": {"a": {"accuracy": "high", "n": 3}}}'),
        ("report.json", '{"systems": {}, "why": 3}'),
        ("report.json", '[1, {"kind": "tuning", "judged": [{"name": "x", "high": 0.3}]}]'),
        ("report.json", '{"kind": "tuning", "judged": [{"name": "x", "questions": "many"}]}'),
        ("metrics.jsonl", '{"step": null}\n{"step": "3"}\n{"step": 4, "step_time": "x"}'),
    ],
)
async def test_files_of_other_programs_do_not_hide_what_was_learned(tmp_path, name, text):
    own = tmp_path / "own"
    own.mkdir()
    (own / "report.json").write_text('{"systems": {"piano": {"accuracy": 0.5, "n": 2}}}')
    (own / "metrics.jsonl").write_text('{"step": 3, "reward": 0.5}\n')
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / name).write_text(text)
    (foreign / "settings.json").write_text('{"optimiser": {"steps": 9}}')
    context = SimpleNamespace(folders=(tmp_path,))
    pages = LearningPages(cast("Any", SimpleNamespace(page_context=context)))
    visitor = SimpleNamespace(screens=(), name="", token="", is_operator=False)
    scope = {"type": "http", "path": "/ui/learning", "headers": [], "query_string": b""}
    page = await pages.page(Request(scope), cast("Any", visitor))
    assert "most accurate: piano, 50.0" in bytes(page.body).decode()
    assert "own" in bytes(page.body).decode()


def test_an_evaluation_with_its_report_is_one_card(tmp_path):
    """`--out` and `--report` write the same figures; the one with the page is shown."""
    for name, report, page in (("out", "{}", False), ("report", "{}", True), ("other", "[]", False),
                               ("broken", "", False), ("empty", "", False)):  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(report)
        if page:
            (tmp_path / name / "report.html").write_text("<p>")
    found = find_reports((tmp_path,))
    for order in (found, found[::-1]):
        names = [each.name for each in drop_copies(order)]
        assert sorted(names) == ["broken", "empty", "other", "report"]
        assert names == [each.name for each in order if each.name != "out"]


@pytest.mark.parametrize(
    ("place", "command", "owner"),
    [
        ("one/mine/eval", "batuta", "one/mine"),
        ("apart", "batuta eval --conductor one/mine/policy", "one/mine"),
        ("apart", "batuta eval --conductor=./two/mine", "two/mine"),
        ("apart", "batuta eval --conductor mine/policy", None),
        ("apart", "batuta eval --conductor 'one/other mine/best'", "one/other mine"),
        ("apart", "batuta eval --conductor ../mine/policy", None),
        ("apart", "batuta eval --conductor '", None),
        ("apart", "batuta eval --conductor", None),
        ("apart", "batuta eval --conductor best", None),
    ],
)
def test_evaluations_of_a_training_are_found(tmp_path, place, command, owner):
    """One that may be of several trainings of the same name is nobody's."""
    for name in ("one/mine", "two/mine", "one/other mine"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "metrics.jsonl").write_text("{}\n")
    (tmp_path / place).mkdir()
    report = {"systems": {}, "command": command}
    (tmp_path / place / "report.json").write_text(json.dumps(report))
    trainings, reports = find_trainings((tmp_path,)), find_reports((tmp_path,))
    found = {each.name for each in trainings if find_evaluations(each, trainings, reports)}
    assert found == ({owner} if owner else set())
