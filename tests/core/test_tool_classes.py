"""The class of a tool by its name and schema, and which tools each step of a workflow may have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.core import Step, Tool, WorkerId, Workflow
from batuta.core.tool_classes import ToolClass, ToolClasses, classify_tool

OBSERVING = """
    Read Grep Glob LS NotebookRead WebSearch read_file list_dir view_image get_weather
    mcp__github__get_issue file_search ListMcpResourcesTool grep_search
"""
CHANGING = """
    Edit Write MultiEdit NotebookEdit Bash KillShell shell exec_command apply_patch write
    write_file TodoWrite str_replace_based_edit_tool mcp__github__create_issue git_commit
    get_or_create deleteUser f Task Skill open_the_door tool \u0394 search_and_replace
"""
ASKING = "AskUserQuestion ask_followup_question confirm_plan"


@pytest.mark.parametrize(
    ("names", "wanted"),
    [(OBSERVING, "observe"), (CHANGING, "change"), (ASKING, "ask")],
)
def test_tools_of_known_agents_have_the_class_of_what_they_do(names, wanted):
    told = {name: classify_tool(Tool(name=name)) for name in names.split()}
    assert told == dict.fromkeys(names.split(), wanted)


@pytest.mark.parametrize("parameter", ["command", "SQL", "content", "new_string", "code", "method"])
def test_a_parameter_that_can_do_anything_makes_a_reading_tool_a_changing_one(parameter):
    def tool(*names):
        return Tool(name="query", parameters={"properties": {name: {} for name in names}})

    assert classify_tool(tool("path", "limit")) is ToolClass.OBSERVE
    assert classify_tool(tool("path", parameter)) is ToolClass.CHANGE


@pytest.mark.parametrize("schema", [{}, {"properties": None}, {"properties": ["command"]}])
def test_a_schema_without_parameters_leaves_the_name(schema):
    assert classify_tool(Tool(name="Read", parameters=schema)) is ToolClass.OBSERVE


def test_the_settings_go_first_and_of_patterns_the_longest():
    classes = ToolClasses(
        {"mcp__db__*": ToolClass.OBSERVE, "mcp__*": ToolClass.ASK, "Read": ToolClass.CHANGE}
    )
    names = ("mcp__db__run", "mcp__web__run", "Read", "Grep")
    told = [classes.of(Tool(name=name)) for name in names]
    assert told == ["observe", "ask", "change", "observe"]


TOOLS = tuple(
    Tool(name=name) for name in ("Read", "Edit", "Bash", "AskUserQuestion", "Grep", "who_knows")
)


@st.composite
def workflows(draw):
    steps = []
    for index in range(draw(st.integers(1, 5))):
        access = draw(st.sets(st.integers(0, index - 1))) if index else set()
        steps.append(Step(subtask="s", worker=WorkerId("w"), access=tuple(sorted(access))))
    return Workflow(tuple(steps))


def ended_before(flow, index):
    """The steps that have surely ended when that step starts."""
    read = set(flow.steps[index].access)
    return read.union(*(ended_before(flow, one) for one in read))


@given(workflows())
def test_at_most_one_step_changes_things_and_nothing_with_tools_runs_beside_it(flow):
    classes = ToolClasses()
    had = [classes.of_step(flow, index, TOOLS) for index in range(len(flow))]
    acting = {
        i for i, tools in enumerate(had) if {classes.of(t) for t in tools} - {ToolClass.OBSERVE}
    }
    assert acting == {len(flow) - 1} and had[-1] == TOOLS
    for index, tools in enumerate(had[:-1]):
        if index not in ended_before(flow, len(flow) - 1):
            assert not tools
        else:
            assert [tool.name for tool in tools] == ["Read", "Grep"]
