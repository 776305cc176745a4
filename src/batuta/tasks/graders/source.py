"""The program in an answer: which of its code blocks, or which of them together."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from batuta.tasks.graders import extract

MAX_LENGTH = 100_000
"""Characters of a program."""

_FENCE = re.compile(r"(?P<before>[ \t]*(?:(?:[-*+>]|\d+[.)])[ \t]+)*)(?P<fence>`{3,}|~{3,})(?P<info>.*)")
_LANGUAGE = re.compile(r"[{.\s]*(?:(?:class|lang|language)\s*[=:]\s*[\"']?)?([\w+#-]*)")
_PYTHON = frozenset({"python", "python3", "py", "py3", "python-3", "ipython", "python2", "sage"})
_PROMPT = re.compile(r"^(?:>>>|\.\.\.|In \[\d+\]:|\$ )", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A code block."""

    language: str
    """In small letters; empty: none is named."""
    text: str

    @property
    def python(self) -> bool:
        """Whether it says that it is Python."""
        return self.language in _PYTHON


def program_in(answer: str) -> str | None:
    """The program in an answer; None if there is none, or if its last block is cut.

    The last block of Python, with those before it that it needs: the helpers of a program that is
    told in pieces. A block that names no language counts where it can be Python and defines
    something, or where there is none that does: otherwise it is output, or shows the use. An
    answer without any block is the program itself.
    """
    shown = extract.visible(answer, MAX_LENGTH)
    blocks = list(_blocks(shown))
    if any(block is None for block in blocks):
        return None
    whole = [block for block in blocks if block is not None]
    if not whole:
        return shown.strip() or None
    named = [block for block in whole if block.python]
    bare = [block for block in whole if not block.language and _is_code(block.text)]
    wanted = [b for b in whole if b in named or (b in bare and (_defines(b.text) or not named))]
    return _joined([block.text for block in wanted]) if wanted else None


def _blocks(text: str) -> Iterator[Block | None]:
    """Every code block, without the margin of its fence; None for one that is cut."""
    lines = text.splitlines(keepends=True)
    at = 0
    while at < len(lines):
        opened = _FENCE.fullmatch(lines[at].rstrip("\r\n"))
        at += 1
        if opened is None or (opened["fence"][0] == "`" and "`" in opened["info"]):
            continue
        fence, start = opened["fence"], at
        while at < len(lines) and not _closes(lines[at], fence):
            at += 1
        if at == len(lines):
            yield None
            return
        language = _LANGUAGE.match(opened["info"])
        yield Block(
            language[1].casefold() if language else "",
            _without_margin(lines[start:at], len(opened["before"])),
        )
        at += 1


def _closes(line: str, fence: str) -> bool:
    marks = line.strip().lstrip("> ")
    return len(marks) >= len(fence) and not marks.strip(fence[0])


def _without_margin(lines: list[str], margin: int) -> str:
    """What a list or a quotation put before each line, taken away."""
    if all(line.lstrip().startswith(">") for line in lines if line.strip()):
        quoted = [re.sub(r"^\s*> ?", "", line) for line in lines]
        if margin and any(line.strip() for line in lines):
            return "".join(quoted)
    indented = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    cut = min([margin, *indented])
    text = "".join(line[cut:] if line.strip() else line.lstrip(" \t") for line in lines)
    return text if _parses(text) else textwrap.dedent(text)


def _joined(blocks: list[str]) -> str:
    """The last program, with the earlier blocks that it needs.

    A block that only uses what those before it define shows the use. One that does not stand for
    itself continues those before it; one that defines again what they define replaces them.
    """
    while len(blocks) > 1 and _only_uses(blocks[-1], blocks[:-1]):
        blocks = blocks[:-1]
    last = blocks[-1]
    wanted = _free_names(last)
    parts = [last]
    for earlier in reversed(blocks[:-1]):
        defined = _defined_names(earlier)
        if not defined & wanted or defined & _defined_names("\n".join(parts)) & _functions(earlier):
            continue
        parts.insert(0, earlier)
        wanted |= _free_names(earlier)
    return "\n".join(parts) if len(parts) > 1 else last


def _parsed(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _parses(text: str) -> bool:
    return _parsed(text) is not None


def _is_code(text: str) -> bool:
    """Whether it can be Python that does something, rather than an output or a session."""
    tree = _parsed(text)
    if tree is None or _PROMPT.search(text):
        return False
    return any(not isinstance(n, ast.Expr) or isinstance(n.value, ast.Call) for n in tree.body)


def _defines(text: str) -> bool:
    """Whether it defines a function or a class, or is a script that reads or prints."""
    tree = _parsed(text)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return tree is not None and any(isinstance(node, kinds) for node in tree.body)


def _functions(text: str) -> set[str]:
    tree = _parsed(text)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in tree.body if isinstance(node, kinds)} if tree else set()


def _defined_names(text: str) -> set[str]:
    """The globals that it sets."""
    tree = _parsed(text)
    names: set[str] = set()
    for node in tree.body if tree else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(one.asname or one.name).partition(".")[0] for one in node.names}
        else:
            names |= {
                one.id
                for one in ast.walk(node)
                if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
            }
    return names


def _free_names(text: str) -> set[str]:
    """The names that it uses and does not set."""
    tree = _parsed(text)
    if tree is None:
        return set()
    used = {
        one.id
        for one in ast.walk(tree)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)
    }
    return used - _defined_names(text)


def _only_uses(text: str, before: list[str]) -> bool:
    """Whether it defines no function and calls one that is defined before it."""
    if _functions(text) or not _parses(text):
        return False
    return bool(_free_names(text) & set().union(*map(_functions, before)))
