"""Every shell block of README and docs/ is run as it stands; nothing that it needs may be missing."""

import re
from pathlib import Path

import pytest
from anyio.to_thread import run_sync

from docs.shell import BLOCK, ROOT, run_page, shell_blocks
from fakes import FakeOpenAI

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ELSEWHERE = {
    "connect.md": "tests/cli/test_connect.py",  # it ends with a client that is not installed
    "deploy.md": "tests/cluster/test_deploy_page.py",
    "sessions.md": "tests/cli/test_connect.py",  # its client is not installed
    "kubernetes.md": "tests/docs/test_kubernetes_page.py",
    "local.md": "tests/local/test_serving.py",
    "selector.md": "tests/e2e/test_selector_page.py",
    "sign-in.md": "tests/docs/test_sign_in_page.py",
    "storage.md": "tests/store/test_backup.py",
    "tools.md": "tests/cli/test_mcp.py",  # it ends with a client that is not installed
    "training.md": "tests/test_docs.py",  # by the example that does what the page says
    "tutorial-research.md": "tests/test_docs.py",  # its example is run with the others
    "tutorial-train.md": "tests/test_docs.py",
    "tune.md": "tests/lab/tune/test_docs_tune.py",
}
"""Pages whose commands take minutes, gigabytes or other programs, and have a test of their own."""
WITH_SHELL = [page for page in PAGES if shell_blocks(page) and page.name not in ELSEWHERE]
FLOW = 'model_id = [0]\nsubtasks = ["Answer it."]\naccess_list = [[]]'
LONG = {"evaluation.md", "tutorial-tune.md"}


def answer(body):
    """A workflow where one is asked for, else an answer to the question."""
    text = str(body["messages"])
    return FLOW if "access_list" in text else "Answer: 391"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.long] if page.name in LONG else [], id=page.name)
        for page in WITH_SHELL
    ],
)
async def test_the_shell_blocks_of_a_page_run_as_they_stand(page, tmp_path, command_line):
    async with FakeOpenAI(answer, strict_openai=False, check=False) as model:
        model.models = [{"id": "gpt-5-mini"}, {"id": "gpt-5"}, {"id": "gpt-4.1"}]
        done = await run_sync(
            lambda: run_page(
                command_line,
                shell_blocks(page),
                tmp_path / "page",
                OPENAI_BASE_URL=model.url,
                ANTHROPIC_BASE_URL=model.origin,
                no_proxy="127.0.0.1",
            )
        )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_stands_in_a_shell_block(page):
    if page.name in ELSEWHERE:
        assert (ROOT / ELSEWHERE[page.name]).is_file()
        return
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    assert not re.findall(r"^    (?:batuta|export|make|pip|curl) .*$", text, re.MULTILINE)


def test_there_are_blocks_to_run():
    assert len(WITH_SHELL) >= 7
    assert "batuta ask" in BLOCK.findall(Path(ROOT / "README.md").read_text(encoding="utf-8"))[0]
