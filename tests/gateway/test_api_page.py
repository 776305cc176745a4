"""docs/api.md classes every parameter as the code does."""

import re
from pathlib import Path

import pytest

from batuta.gateway.chat import request as chat
from batuta.gateway.embeddings import endpoint as embeddings
from batuta.gateway.messages import request as messages
from batuta.gateway.responses import request as responses

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("title", "module"),
    [
        ("Chat completions", chat),
        ("Responses", responses),
        ("Messages", messages),
        ("Embeddings", embeddings),
    ],
)
def test_every_parameter_is_on_the_page(title, module):
    section = re.split(r"^##+ ", PAGE.split(f"### {title}\n")[1], flags=re.MULTILINE)[0]
    rows = dict(re.findall(r"^\| (honoured|checked|refused) \| (.*) \|$", section, re.MULTILINE))
    said = {
        kind: set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", row)))
        for kind, row in rows.items()
    }
    assert said == {
        "honoured": module._USED_FIELDS,
        "checked": module._ACCEPTED_FIELDS,
        "refused": set(module.REFUSED_FIELDS),
    }


def test_every_error_is_on_the_page():
    source = Path(__file__).parents[2] / "src" / "batuta" / "gateway"
    texts = [file.read_text(encoding="utf-8") for file in source.rglob("*.py")]
    raised = {pair for text in texts for pair in re.findall(r'APIError\(\s*(\d{3}), "(\w+)"', text)}
    table = PAGE.split("## Errors\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([\d, ]+) \| (.*) \|$", table, re.MULTILINE)
    said = {(s, code) for statuses, codes in rows for s in statuses.split(", ") for code in re.findall(r"`(\w+)`", codes)}  # fmt: skip
    assert len(raised) > 20
    assert raised - said == set()


def test_every_route_is_on_the_page():
    from batuta.gateway import create_app
    from gateway.live_server import scripted_state

    app = create_app(scripted_state({"ada": object()}))
    paths = {
        route.path.replace("{id:path}", "{id}")  # pyright: ignore[reportAttributeAccessIssue]
        for route in app.routes
        if hasattr(route, "path")
    }
    public = {path for path in paths if path.startswith("/v1/") and "/admin" not in path}
    assert {path for path in public if f"{path}`" not in PAGE} == set()
