"""What the documents' site has beside docs/: generated references, and the repository's documents.

MkDocs calls the functions at the end. Nothing is written into the repository: pages are made from
the code and from the files as they are, and a link to what is no page becomes plain text.
"""

from __future__ import annotations

import ast
import inspect
import json
import posixpath
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_origin

from mkdocs.structure.files import File, Files
from pydantic import BaseModel
from starlette.routing import Route
from typer.main import get_command

import batuta
from batuta.cli import app
from batuta.config.settings import Settings
from batuta.gateway.openapi.document import OPERATIONS, build_document

ROOT = Path(__file__).resolve().parents[2]
HOME = "index.md"
_DOCUMENTS = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "papers.md", "bench/RESULTS.md")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_LONGEST_DEFAULT = 60
"""Characters of a default that are shown."""
_LINE = 80
"""Characters of a signature that stands in one line."""
_DEEPEST = 4
"""Tables within tables that are described."""
_ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:|^#")


def find_documents() -> dict[str, str]:
    """Return the site's address of each document, by its path in the repository."""
    paths = [*_DOCUMENTS, *(str(p.relative_to(ROOT)) for p in sorted(ROOT.glob("design/*.md")))]
    for pattern in ("*.md", "*.png", "*.svg"):
        paths += [str(p.relative_to(ROOT)) for p in sorted(ROOT.glob(f"recipes/*/{pattern}"))]
    pages = {f"docs/{p.name}": p.name for p in sorted((ROOT / "docs").glob("*.md"))}
    pages |= {f"docs/images/{p.name}": f"images/{p.name}" for p in ROOT.glob("docs/images/*")}
    return {"README.md": HOME, **pages, **{path: path for path in paths}}


def point_links(text: str, at: str, documents: dict[str, str]) -> str:
    """Return the text of the document at that path, its links leading to pages of the site."""

    def point(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        if _ELSEWHERE.match(target):
            return found[0]
        path, hash_, anchor = target.partition("#")
        place = posixpath.normpath(posixpath.join(posixpath.dirname(at), path))
        if place not in documents:
            return label
        here = posixpath.dirname(documents[at]) or "."
        return f"{mark}[{label}]({posixpath.relpath(documents[place], here)}{hash_}{anchor})"

    parts = re.split(r"(^```.*?^```[^\n]*$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if at_ % 2 else _LINK.sub(point, part) for at_, part in enumerate(parts))


# ---- settings ---------------------------------------------------------------------------------


def describe_settings() -> str:
    """Return every setting of batuta.toml: its key, type, default, and what it means."""
    told = ["# Settings of batuta.toml", "Generated from the code that reads the file."]
    told += _describe_tables(Settings, "", set())
    return "\n\n".join(told) + "\n"


def _describe_tables(model: type[BaseModel], path: str, seen: set[str]) -> Iterator[str]:
    """Return the table of a model's keys, and those of the models within it."""
    rows, inner = [], []
    words = _attribute_docs(model)
    for name, field in model.model_fields.items():
        child = _model_within(field.annotation)
        if child is not None:
            inner.append((f"{path}.{name}".strip("."), child))
        kind = "table" if child is not None else _type_name(field.annotation)
        default = "required" if field.is_required() else f"`{_default_text(field)}`"
        bounds = ", ".join(str(rule) for rule in field.metadata if hasattr(rule, "__slots__"))
        about = " ".join(words.get(name, field.description or "").split())
        place = f"{path}.{name}".strip(".")
        anchor = re.sub(r"[^\w-]", "", place)
        key = f"[`{name}`](#{anchor})" if child is not None else f"`{name}`"
        cells = [key, kind, "" if child else default, _bounds_text(bounds), about]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    if path:
        yield f"## `[{path}]`"
        yield _sentence(inspect.getdoc(model))
    if rows:
        yield "| key | type | default | range | meaning |\n|---|---|---|---|---|\n" + "\n".join(
            rows
        )
    for place, child in inner:
        if place not in seen and place.count(".") < _DEEPEST:
            seen.add(place)
            yield from _describe_tables(child, place, seen)


def _bounds_text(text: str) -> str:
    signs = {"Ge(ge=": "≥ ", "Gt(gt=": "> ", "Le(le=": "≤ ", "Lt(lt=": "< "}
    found = re.findall(r"(Ge\(ge=|Gt\(gt=|Le\(le=|Lt\(lt=)([^)]*)\)", text)
    return ", ".join(signs[kind] + value for kind, value in found)


def _model_within(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_within(each) for each in get_args(annotation))
    return next((each for each in found if each is not None), None)


def _type_name(annotation: Any) -> str:
    if isinstance(annotation, type) and not get_args(annotation):
        return {"str": "text", "int": "whole number", "bool": "true or false"}.get(
            annotation.__name__, "number" if annotation.__name__ in {"float", "Decimal"} else "text"
        )
    origin, inside = get_origin(annotation), get_args(annotation)
    if str(origin) == "typing.Literal":
        return ", ".join(f"`{value}`" for value in inside)
    if origin in {tuple, list, frozenset, set}:
        return f"list of {_type_name(inside[0])}"
    if origin is dict:
        return "table"
    known = [each for each in inside if each is not type(None) and each is not Ellipsis]
    return _type_name(known[0]) if known and origin is not None else "value"


def _default_text(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    text = str(list(value) if isinstance(value, tuple) else getattr(value, "value", value))
    if not text:
        return '""'
    return text if len(text) <= _LONGEST_DEFAULT else "…"


def _attribute_docs(owner: type) -> dict[str, str]:
    """Return the texts below the attributes of a class and of those that it extends."""
    found: dict[str, str] = {}
    for one in reversed(owner.__mro__):
        if not one.__module__.startswith("batuta"):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(one)))
        except (OSError, TypeError, SyntaxError):
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for before, after in pairwise(body):
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if (
                isinstance(before, ast.AnnAssign)
                and is_text
                and isinstance(before.target, ast.Name)
            ):
                found[before.target.id] = str(after.value.value)
    return found


# ---- commands, the API, Python ----------------------------------------------------------------


def describe_commands() -> str:
    """Return every command with its arguments and options, as `--help` has them."""
    told = ["# Command line", "Generated from the commands; the same as `--help` of each."]
    told += _describe_command(get_command(app), "batuta")
    return "\n\n".join(told) + "\n"


def _describe_command(command: Any, path: str) -> Iterator[str]:
    is_within_group = " " in path.removeprefix("batuta ")
    yield f"{'###' if is_within_group else '##'} `{path}`"
    yield textwrap.dedent(command.help or "").replace("\b", "").strip()
    rows = [
        _describe_parameter(each) for each in command.params if not getattr(each, "hidden", False)
    ]
    rows = [row for row in rows if row and "`--help`" not in row]
    if rows:
        yield "| option | default | meaning |\n|---|---|---|\n" + "\n".join(rows)
    if hasattr(command, "list_commands"):
        context = command.context_class(command, info_name=path.rpartition(" ")[2])
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _describe_command(inner, f"{path} {name}")


def _describe_parameter(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar or parameter.name.upper()}`"
    default = parameter.default
    shown = "" if default in (None, (), "", False) or callable(default) else f"`{default}`"
    about = " ".join((getattr(parameter, "help", "") or "").split()).replace("|", "\\|")
    return f"| {names} | {shown} | {about} |"


def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document of the server."""
    routes = [Route(path, lambda _: None, methods=[method]) for method, path in OPERATIONS]
    return build_document(routes)


def describe_http(document: dict[str, Any]) -> str:
    """Return every address of the server, with the fields of its body."""
    where = "the OpenAPI document of a server (`/openapi.json`): [openapi.json](openapi.json)"
    told = [
        "# HTTP API",
        f"Generated from {where}. What the fields mean: [API](../api.md).",
    ]
    for path, item in document["paths"].items():
        for method, said in item.items():
            if method == "parameters":
                continue
            told += [f"## `{method.upper()} {path}`", f"{said['summary']}."]
            names = [f"`{each['name']}`" for each in said.get("parameters", ())]
            if names:
                told.append(f"In the query: {', '.join(names)}.")
            body = said.get("requestBody", {}).get("content", {}).get("application/json", {})
            name = body.get("schema", {}).get("$ref", "").rpartition("/")[2]
            fields = document["components"]["schemas"].get(name, {}).get("properties", {})
            if fields:
                told.append(
                    "In the body: " + ", ".join(f"`{field}`" for field in sorted(fields)) + "."
                )
    return "\n\n".join(told) + "\n"


def describe_python() -> str:
    """Return the public names of the package, from their own docstrings."""
    told = ["# Python", "Generated from the code; how they are used: [Python](../python.md)."]
    for name in batuta.__all__:
        if name.startswith("__"):
            continue
        found = getattr(batuta, name)
        told += [f"## `batuta.{name}`", f"```python\n{_signature_text(name, found)}\n```"]
        told.append(_docstring_text(found))
        if not inspect.isclass(found):
            continue
        words = _attribute_docs(found)
        rows = [
            f"| `{each}` | {' '.join(text.split())} |".replace("\n", " ")
            for each, text in words.items()
        ]
        if rows:
            told.append("| attribute | meaning |\n|---|---|\n" + "\n".join(rows))
        for method, member in inspect.getmembers(found, inspect.isfunction):
            if not method.startswith("_") and member.__module__.startswith("batuta"):
                told += [
                    f"### `{name}.{method}`",
                    f"```python\n{_signature_text(method, member)}\n```",
                ]
                told.append(_docstring_text(member))
    return "\n\n".join(told) + "\n"


def _signature_text(name: str, found: Any) -> str:
    """Return the signature, over several lines where it is long."""
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return f"{name}(…)"
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(signature))
    text = re.sub(r"<factory>|<object object at 0x[0-9a-f]+>", "…", text)
    if len(name + text) < _LINE:
        return name + text
    inside, _, answer = text[1:].rpartition(")")
    lines = "".join(f"    {part},\n" for part in _split_parameters(inside))
    return f"{name}(\n{lines}){answer}"


def _split_parameters(text: str) -> list[str]:
    """Return the parts between the commas that stand in no bracket."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _docstring_text(found: Any) -> str:
    """Return a docstring as Markdown: its sections as lists."""
    text = inspect.getdoc(found) or ""
    lines = []
    for line in text.splitlines():
        section = re.fullmatch(r"(Args|Raises|Returns|Yields):", line)
        entry = re.fullmatch(r" {4}(\w+): (.*)", line)
        if section:
            lines += ["", f"**{section[1]}**", ""]
        elif entry:
            lines.append(f"- `{entry[1]}`: {entry[2]}")
        elif line.startswith("    "):
            lines.append("  " + line.strip() if line.startswith("        ") else line)
        else:
            lines.append(line)
    return "\n".join(lines)


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split())


# ---- what MkDocs calls ------------------------------------------------------------------------


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages and the repository's documents."""
    document = openapi_document()
    generated = {
        "reference/settings.md": describe_settings(),
        "reference/commands.md": describe_commands(),
        "reference/http.md": describe_http(document),
        "reference/python.md": describe_python(),
        "reference/openapi.json": json.dumps(document, indent=1),
    }
    for path, place in find_documents().items():
        if path.endswith(".md") and not path.startswith("docs/"):
            generated[place] = (ROOT / path).read_text(encoding="utf-8")
        elif not path.startswith("docs/"):
            files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    for place, content in generated.items():
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Points the links of a page to where its neighbours are on the site."""
    documents = find_documents()
    at = next((path for path, place in documents.items() if place == page.file.src_uri), None)
    return markdown if at is None else point_links(markdown, at, documents)


def on_post_page(output: str, **_: Any) -> str:
    """Names the theme's search dialog for those who do not see it."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')
