"""Reading: lenient in form, strict in validity, linear in time."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.core import AcceptedAnswer, Pool, Step, Worker, WorkerId, Workflow
from batuta.errors import WorkflowError
from batuta.language import parse_workflow, render_workflow
from batuta.language.examples import worked_examples
from batuta.language.literal import read_list

POOL = Pool(tuple(Worker(id=WorkerId(f"w{n}"), model="m") for n in range(7)))

AWKWARD = st.sampled_from(
    [
        '"',
        "'",
        "[",
        "]",
        ",",
        "\n",
        "\\",
        "`",
        "“",
        "”",
        "’",
        "<think>",
        "</think>",
        "model_id = [1]",
        "subtasks: [",
        "access_list",
        "#",
        "é",
        "日本",
        "\u2028",
        "🎼",
        "\t",
        "{",
        "}",
        '"""',
        "all",
    ]
)
SUBTASKS = st.lists(AWKWARD | st.text(max_size=8), max_size=8).map("".join)


@st.composite
def workflows(draw, revise=False):
    steps = []
    for index in range(draw(st.integers(1, 5))):
        previous = revise and draw(st.booleans())
        earlier = st.lists(st.integers(0, index - 1), unique=True) if index else st.just([])
        access = tuple(range(index)) if previous else tuple(sorted(draw(earlier)))
        worker = draw(st.sampled_from(POOL.workers)).id
        steps.append(Step(subtask=draw(SUBTASKS), worker=worker, access=access, previous=previous))
    return Workflow(tuple(steps))


@given(workflows())
@settings(max_examples=4 * settings().max_examples)
def test_round_trip(workflow):
    assert parse_workflow(render_workflow(workflow, POOL), POOL) == workflow


@given(workflows())
def test_round_trip_by_name(workflow):
    assert parse_workflow(render_workflow(workflow, POOL, names=True), POOL) == workflow


def test_a_worker_may_be_named_instead_of_numbered():
    name = POOL.workers[1].id
    text = f'model_id = ["{name}", 0]\nsubtasks = ["a", "b"]\naccess_list = [[], [0]]'
    assert [s.worker for s in parse_workflow(text, POOL).steps] == [name, POOL.workers[0].id]  # pyright: ignore[reportAttributeAccessIssue]


@given(workflows(revise=True), st.text(max_size=60).filter(lambda t: "model" not in t.lower()))
@settings(max_examples=2 * settings().max_examples)
def test_round_trip_in_a_later_round_with_reasoning_around(workflow, reasoning):
    reasoning = reasoning.replace("<", "").replace("sub", "").replace("access", "")
    text = f"<think>model_id = [9, 9]</think>{reasoning}\n{render_workflow(workflow, POOL)}\nDone."
    assert parse_workflow(text, POOL, revise=True) == workflow


@given(workflows())
def test_a_python_repr_is_read_as_python_would(workflow):
    ids = [POOL.number(step.worker) for step in workflow.steps]
    subtasks = [step.subtask for step in workflow.steps]
    text = f"model_id: {ids}\nsubtasks: {subtasks!r}\naccess_list: {[list(s.access) for s in workflow.steps]}"
    if "<think" not in text and "</think" not in text:
        assert parse_workflow(text, POOL) == workflow


PIECES = st.sampled_from(
    [
        "model_id = [",
        "subtasks = [",
        "access_list = [",
        "[",
        "]",
        '"',
        "'",
        "“",
        ",",
        "0",
        "all",
        "\\",
        "<think>",
        "</think>",
        "\n",
        " ",
        "`",
        "None",
        "-1",
        "1.5",
        '["all"]',
        "=",
        ":",
        "#",
        '"""',
        "r'",
        "\\ud83d",
        "99999999999",
    ]
)


@given(st.lists(PIECES | st.text(max_size=5), max_size=60).map("".join), st.booleans())
@settings(max_examples=6 * settings().max_examples)
def test_any_text_is_a_workflow_or_a_workflow_error(text, revise):
    try:
        read = parse_workflow(text, POOL, revise=revise)
    except WorkflowError as error:
        assert str(error)
    else:
        assert isinstance(read, AcceptedAnswer) or 1 <= len(read) <= 5


FORMS = {
    "paper": 'model_id = [6, 5]\nsubtasks = ["a", "b"]\naccess_list = [[], ["all"]]',
    "bare all": 'model_id = [6, 5]\nsubtasks = ["a", "b"]\naccess_list = [[], "all"]',
    "fine-grained": 'model_id = [6, 5]\nsubtasks = ["a", "b"]\naccess_list = [[], [0]]',
    "numeric strings": 'model_id = ["6", "5"]\nsubtasks = ["a", "b"]\naccess_list = [[], ["0"]]',
    "labels": 'Model IDs: [6, 5]\nSubtask: ["a", "b"]\nAccess: [[], "all"]',
    "bullets and back-ticks": '- `model_id` = `[6, 5]`\n* **subtasks**: ["a", "b"]\n• access list = [[], ["all"]]',
    "fences": '```python\nmodel_id = [6, 5]\nsubtasks = ["a", "b"]\naccess_list = [[], ["all"]]\n```',
    "json": '{"model_id": [6, 5], "subtasks": ["a", "b"], "access_list": [[], ["all"]]}',
    "curly quotes": "model_id = [6, 5]\nsubtasks = [“a”, ‘b’]\naccess_list = [[], [“all”]]",
    "thinking": '<think>model_id = [1]</think>model_id=[6,5] subtasks=["a","b"] access_list=[[],["all"]]',
    "thinking begun in the prefix": 'model_id = [1] </think> model_id=[6,5] subtasks=["a","b"] access_list=[[],["all"]]',
    "another order": 'access_list = [[], ["all"]]\nsubtasks = ["a", "b"]\nmodel_id = [6, 5]',
    "words before": 'The model_id list matters. model_id (in order): [6, 5]\nsubtasks = ["a", "b"]\naccess_list = [[], ["all"]]',
    "trailing commas": 'model_id = [6, 5,]\nsubtasks = ["a", "b",]\naccess_list = [[], ["all"],]',
    "all on the first": 'model_id = [6, 5]\nsubtasks = ["a", "b"]\naccess_list = ["all", "all"]',
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form):
    steps = (
        Step(subtask="a", worker=WorkerId("w6")),
        Step(subtask="b", worker=WorkerId("w5"), access=(0,)),
    )
    assert parse_workflow(FORMS[form], POOL) == Workflow(steps)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "there is no list model_id"),
        ("model_id = [1]", "there is no list subtasks"),
        ('model_id = [1]\nsubtasks = ["a"]', "there is no list access_list"),
        ('model_id = [1\nsubtasks = ["a"]\naccess_list = [[]]', "model_id: a comma is missing"),
        ('model_id = [7]\nsubtasks = ["a"]\naccess_list = [[]]', "model_id of step 0 is 7 where the pool has 0 to 6"),
        ('model_id = [-1]\nsubtasks = ["a"]\naccess_list = [[]]', "model_id of step 0 is -1"),
        ('model_id = [True]\nsubtasks = ["a"]\naccess_list = [[]]', "is neither a number nor a worker's id but 'True'"),
        ('model_id = [1, 2]\nsubtasks = ["a"]\naccess_list = [[]]', "subtasks has 1 entries where model_id has 2"),
        ("model_id = [1]\nsubtasks = [3]\naccess_list = [[]]", "subtask 0 is not a string"),
        ('model_id = [1]\nsubtasks = ["a"]\naccess_list = [[0]]', "access of step 0 names step 0"),
        ('model_id = [1, 1]\nsubtasks = ["a", "b"]\naccess_list = [[1], []]', "access of step 0 names step 1"),
        ('model_id = [1]\nsubtasks = ["a"]\naccess_list = [["some"]]', "access of step 0 has 'some', which is no step's number"),
        ("model_id = []\nsubtasks = []\naccess_list = []", "the workflow has no step"),
        (f"model_id = {[0] * 6}\nsubtasks = {['a'] * 6}\naccess_list = {[[]] * 6}", "6 steps where 5 are allowed"),
    ],
)  # fmt: skip
def test_the_first_thing_wrong_is_named(text, sentence):
    with pytest.raises(WorkflowError) as caught:
        parse_workflow(text, POOL)
    assert sentence in str(caught.value)


def test_three_empty_lists_accept_only_in_a_later_round():
    text = "model_id = [], subtasks = [], access_list = []"
    assert parse_workflow(text, POOL, revise=True) == AcceptedAnswer()


def test_the_worked_examples_of_the_prompt_are_workflows():
    text = worked_examples(POOL, 5, by_merit=True)
    lengths = [len(parse_workflow(example, POOL)) for example in text.split("EXAMPLE ")[1:]]  # pyright: ignore[reportArgumentType]
    assert lengths == [1, 2, 3, 5]


HOSTILE = [
    "[" * 10_000,
    "model_id=[" * 1_000,
    'model_id=["' * 900,
    "model_id=[“" * 900,
    "model_id=['a'," * 700,
    "<think>" * 1_400,
    "</think>" * 1_250,
    'model_id=[0] subtasks=["' + "\\" * 9_900,
    "model_id" * 1_250,
    "`" * 10_000,
    "model_id" + "`" * 9_000 + "=[",
    ("model_id" + " " * 7 + "= " + " " * 14) * 300,
    "model_id=[" + "1," * 4_900,
    "model_id=[" + '"a"' * 3_300,
    "model_id=[" + "#\n" * 4_900,
    "model_id=[" + "[" * 9_900,
    "model_id=[0] " + "model_id=[“" * 900,
    "access" * 1_650,
    "<think" * 1_650,
    "model_id=[" + "9" * 9_900 + "]",
]


def cost(work):
    """CPU seconds, the least of three."""
    took = []
    for _ in range(3):
        start = time.process_time()
        work()
        took.append(time.process_time() - start)
    return min(took)


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_text_costs_what_its_length_costs(number):
    """Measured by what this machine takes for some plain arithmetic, be it fast or slow."""
    text = HOSTILE[number]

    def read():
        with pytest.raises(WorkflowError):
            parse_workflow(text, POOL)

    plain = cost(lambda: sum(n * n for n in range(100_000)))
    assert cost(read) < 8 * plain * max(1, len(text) / 10_000)


def test_joining_adjacent_strings_costs_what_reading_them_costs():
    texts = [f"'{'a' * 400}'"] * 10_000
    joined, listed = f"[{' '.join(texts)}]", f"[{','.join(texts)}]"
    assert read_list(joined, 0)[0] == ["a" * 4_000_000]
    assert cost(lambda: read_list(joined, 0)) < 5 * cost(lambda: read_list(listed, 0))


def test_bare_words_keep_their_blanks():
    text = "model_id = [0, 1]\nsubtasks = [solve the question, check it 2 times]\naccess_list = [none, all]"
    found = parse_workflow(text, POOL)
    assert isinstance(found, Workflow)
    assert [step.subtask for step in found.steps] == ["solve the question", "check it 2 times"]
    assert [step.access for step in found.steps] == [(), (0,)]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("solve the\nquestion, check\u00a0it", ["solve the\nquestion", "check\u00a0it"]),
        (f"solve {'a' * 40} now, b", [f"solve {'a' * 40} now", "b"]),
        (
            "über alles, Решить задачу, 检查\u3000它",
            ["über alles", "Решить задачу", "检查\u3000它"],
        ),
        ('say "yes" or no, `check` it', ["say yes or no", "check it"]),
        ("'a' 'b', \"c\"\n\"d\"", ["ab", "cd"]),
    ],
)
def test_white_space_of_any_kind_stays_between_bare_words(text, read):
    assert read_list(f"[{text}]", 0)[0] == read


@pytest.mark.parametrize(
    "text",
    [
        "model_id = [int('0')]\nsubtasks = ['a']\naccess_list = [[]]",
        "model_id = [0 + 0]\nsubtasks = ['a']\naccess_list = [[]]",
        "model_id = [0]\nsubtasks = [__import__('os').system('touch ran')]\naccess_list = [[]]",
        "model_id = [0]\nsubtasks = ['a' * 9]\naccess_list = [[]]",
        'model_id = [0]\nsubtasks = [f\'{open("ran", "w")}\'.x]\naccess_list = [[]]',
        "model_id = [0 for _ in [0]]\nsubtasks = ['a']\naccess_list = [[]]",
        "model_id = [0]\nsubtasks = ['a']\naccess_list = [[] or []]",
    ],
)
def test_an_expression_is_no_workflow(text, tmp_path, monkeypatch):
    """Nothing is evaluated: what is no literal is refused."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WorkflowError):
        parse_workflow(text, POOL)
    assert not list(tmp_path.iterdir())
