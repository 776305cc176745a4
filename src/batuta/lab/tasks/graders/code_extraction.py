"""Finds the program in an answer: one of its code blocks, or several joined."""

from __future__ import annotations

import ast
import html
import re
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from batuta.lab.tasks.graders.structured_data import PROGRAM_KEYS, structured_answer
from batuta.language import answer_extraction

MAX_LENGTH = 100_000
"""Maximum number of characters read of an answer, counted from the end."""

MAX_BLOCKS = 100
"""Maximum number of code blocks read, counted from the end."""

_FENCE = re.compile(
    r"(?P<before>[ \t]*(?:(?:[-*+>]|\d+[.)])[ \t]+)*)(?P<fence>`{3,}|~{3,})(?P<info>.*)"
)
_HTML_BLOCK = re.compile(
    r"<pre[^>]*>\s*<code(?:[^>]*\blanguage-(?P<language>\w+))?[^>]*>\n?(?P<text>.*?)</code>\s*</pre>",
    re.DOTALL | re.IGNORECASE,
)
_TAGGED_BLOCK = re.compile(
    r"^[ \t]*(?:\[(?P<tag>PYTHON|CODE)\]|<(?P<element>code|python)>)[ \t]*\n(?P<text>.*?)\n?"
    r"(?(tag)\[/(?P=tag)\]|</(?P=element)>)",
    re.DOTALL | re.IGNORECASE | re.MULTILINE,
)
"""A block between tags on separate lines, as some models were trained to write it."""
_LATE_FENCE = re.compile(
    r"[^`~]*[^`~\s]\s+(?P<fence>`{3,})(?P<info>(?:python|py)3?)\s*", re.IGNORECASE
)
"""A fence that follows a sentence on the same line."""
_PROGRAM_LINE = re.compile(r"(?:def|class|import|from|async def) \w|@\w")
"""The beginning of a program that is written among sentences, without a block."""
_INDENTED_PROGRAM_LINE = re.compile(rf"(?: {{4}}|\t)(?:{_PROGRAM_LINE.pattern})")
_MAX_PARAGRAPHS = 50
"""Maximum number of paragraphs that may be a program among sentences."""
_UNSEEN = str.maketrans({"\ufeff": "", "\u200b": "", "\u00a0": " ", "\u202f": " "})
"""Characters that are invisible or look like a space, and that Python rejects."""
_LANGUAGE = re.compile(r"[{.\s]*(?:(?:class|lang|language)\s*[=:]\s*[\"']?)?([\w+#-]*)")
_PYTHON = frozenset({"python", "python3", "py", "py3", "python-3", "ipython", "python2", "sage"})
_PROMPT = re.compile(r"^(?:>>>|\.\.\.|In \[\d+\]:|\$ )", re.MULTILINE)

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
_PASSIVE_NODES = (*_DEFINITIONS, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
_ACTIVE_NODES = {*_DEFINITIONS, ast.Import, ast.ImportFrom, ast.Call, ast.For, ast.While}


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A code block of an answer."""

    language: str
    """In lower case; empty if none is named."""
    text: str

    @property
    def is_python(self) -> bool:
        """Whether its language is Python."""
        return self.language in _PYTHON


def extract_program(answer: str) -> str | None:
    """Return the program of an answer; None if there is none, or if its last block is truncated.

    The program is the last block of Python, with the earlier blocks that it needs, such as helpers.
    A block without a language counts if it defines functions or, if no block names Python, contains
    code; all other blocks are taken as output or usage examples. An answer without any block is the
    program itself, contains it between sentences, or has it in a field of its JSON.
    """
    shown = answer_extraction.visible_text(answer, MAX_LENGTH).replace("\r\n", "\n")
    shown = _TAGGED_BLOCK.sub(_fence_tagged, _HTML_BLOCK.sub(_fence_html, shown))
    blocks = list(_code_blocks(shown))
    whole = [block for block in blocks if block is not None][-MAX_BLOCKS:]
    if None in blocks:
        return None
    programs = [_Source(block.text) for block in _program_blocks(whole)]
    if programs:
        return _join_sources(programs)
    data = structured_answer(shown, PROGRAM_KEYS)
    if isinstance(data, str) and data.strip() and data != shown:
        return extract_program(data)
    return None if whole else _bare_program(shown) or None


def _fence_html(found: re.Match[str]) -> str:
    """Return a block of HTML as a block of Markdown."""
    return f"\n```{found['language'] or ''}\n{html.unescape(found['text'])}\n```\n"


def _fence_tagged(found: re.Match[str]) -> str:
    """Return a block between tags as a block of Markdown."""
    return f"\n```python\n{found['text']}\n```\n"


def _bare_program(shown: str) -> str:
    """Return the answer itself, or the program between its sentences if the answer does not parse."""
    text = shown.strip()
    if parse_source(text) is not None:
        return text
    lines = text.splitlines()
    first = next((n for n, line in enumerate(lines) if _PROGRAM_LINE.match(line)), None)
    if first is None:
        return _indented_program(lines) or text
    paragraphs = re.split(r"\n\s*\n", "\n".join(lines[first:]))
    for last in range(min(len(paragraphs), _MAX_PARAGRAPHS), 0, -1):
        part = "\n\n".join(paragraphs[:last])
        if parse_source(part) is not None:
            return part
    return text


def _indented_program(lines: list[str]) -> str | None:
    """Return the program in an indented block of Markdown; None if there is none."""
    starts = (n for n, line in enumerate(lines) if _INDENTED_PROGRAM_LINE.match(line))
    start = next(starts, None)
    if start is None:
        return None
    block = takewhile(lambda line: not line.strip() or line[0] in " \t", lines[start:])
    program = textwrap.dedent("\n".join(block)).strip()
    return None if parse_source(program) is None else program


def _program_blocks(blocks: list[CodeBlock]) -> list[CodeBlock]:
    """Return the blocks that may be the program or a part of it."""
    bare = [block for block in blocks if not block.language]
    if any(block.is_python for block in blocks):
        return [b for b in blocks if b.is_python or (b in bare and _Source(b.text).functions)]
    for counts in (_Source.has_effects, _Source.is_code):
        if found := [block for block in bare if counts(_Source(block.text))]:
            return found
    return []


def _code_blocks(text: str) -> Iterator[CodeBlock | None]:
    """Yield every code block, without the margin of its fence; None for a truncated block."""
    lines = text.splitlines(keepends=True)
    at = 0
    while at < len(lines):
        opened = _opening_fence(lines[at].rstrip("\r\n"))
        at += 1
        if opened is None:
            continue
        (margin, fence, info), start = opened, at
        while at < len(lines) and not _closes_fence(lines[at], fence):
            at += 1
        if at == len(lines):
            yield None
            return
        yield CodeBlock(_block_language(info), _without_margin(lines[start:at], margin))
        at += 1


def _opening_fence(line: str) -> tuple[int, str, str] | None:
    """Return the width before an opening fence, the fence and its info; None for another line."""
    if found := _FENCE.fullmatch(line):
        is_inline = found["fence"][0] == "`" and "`" in found["info"]
        return None if is_inline else (len(found["before"]), found["fence"], found["info"])
    late = _LATE_FENCE.fullmatch(line)
    return None if late is None else (0, late["fence"], late["info"])


def _block_language(info: str) -> str:
    """Return the language in a fence's info string: its first word, or Python for a `.py` file."""
    if re.search(r"\.py\b", info):
        return "python"
    found = _LANGUAGE.match(info)
    return found[1].casefold() if found else ""


def _closes_fence(line: str, fence: str) -> bool:
    marks = line.strip().lstrip("> ")
    return len(marks) >= len(fence) and not marks.strip(fence[0])


def _without_margin(lines: list[str], margin: int) -> str:
    """Return the lines without the prefix that a list or a quotation puts before each."""
    if all(line.lstrip().startswith(">") for line in lines if line.strip()):
        quoted = [re.sub(r"^\s*> ?", "", line) for line in lines]
        if margin and any(line.strip() for line in lines):
            return "".join(quoted)
    indented = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    width = min([margin, *indented])
    text = "".join(line[width:] if line.strip() else line.lstrip(" \t") for line in lines)
    return text if _Source(text).tree else textwrap.dedent(text)


def _join_sources(sources: list[_Source]) -> str:
    """Return the last program, with the earlier blocks that it needs.

    Trailing blocks that only show usage or output of earlier blocks are left out. An earlier block
    is put first if it defines needed names, unless it has side effects and a later block redefines
    its functions. So is a block that only defines names, unless later blocks redefine all of its
    functions: a second solution may have another name than the one that is asked for. An earlier
    block that calls the last block's functions is put after it.
    """
    while len(sources) > 1 and sources[-1].only_demonstrates(sources[:-1]):
        sources = sources[:-1]
    last = sources[-1]
    parts, wanted, redefined = [last.text], last.free, set(last.functions)
    for earlier in reversed(sources[:-1]):
        if earlier.free & sources[-1].functions and not earlier.functions & redefined:
            parts.append(earlier.text)  # in the answer, it precedes the helper that it calls
            wanted = wanted | earlier.free
            redefined |= earlier.functions
        elif earlier.only_adds_functions(redefined) or (
            earlier.defined & wanted and (earlier.is_inert() or not earlier.functions & redefined)
        ):
            parts.insert(0, earlier.text)
            wanted = wanted | earlier.free
            redefined |= earlier.functions
    return "\n".join(parts)


class _Source:
    """Python source, with facts that are visible without running it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = parse_source(text)
        """None if the text is not Python."""
        if self.tree is None and (seen := text.translate(_UNSEEN)) != text:
            self.text, self.tree = seen, parse_source(seen)
        nodes = list(ast.walk(self.tree)) if self.tree else []
        names = [node for node in nodes if isinstance(node, ast.Name)]
        self.kinds = {type(node) for node in nodes}
        self.used = {one.id for one in names if isinstance(one.ctx, ast.Load)}
        self.functions: set[str] = set()
        self.defined: set[str] = set()
        """The global names that the source sets."""
        for node in self.tree.body if self.tree else ():
            self._define(node)
        self.free = self.used - self.defined
        """The names that the source uses and does not set globally."""

    def _define(self, node: ast.stmt) -> None:
        if isinstance(node, _DEFINITIONS):
            self.functions.add(node.name)
            self.defined.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self.defined |= {(one.asname or one.name).partition(".")[0] for one in node.names}
        else:
            names = (one for one in ast.walk(node) if isinstance(one, ast.Name))
            self.defined |= {one.id for one in names if isinstance(one.ctx, ast.Store)}

    def is_code(self) -> bool:
        """Return whether the source is more than bare values, and not an interactive session."""
        body = self.tree.body if self.tree and not _PROMPT.search(self.text) else []
        return any(not isinstance(n, ast.Expr) or isinstance(n.value, ast.Call) for n in body)

    def has_effects(self) -> bool:
        """Return whether the source is code that calls, defines, imports or loops."""
        return self.is_code() and bool(self.kinds & _ACTIVE_NODES)

    def is_inert(self) -> bool:
        """Return whether all statements of the source define, import or assign names."""
        return all(isinstance(n, _PASSIVE_NODES) for n in self.tree.body) if self.tree else False

    def only_adds_functions(self, redefined: set[str]) -> bool:
        """Return whether the source is inert, with some function that is not redefined."""
        return bool(self.functions - redefined) and self.is_inert()

    def only_demonstrates(self, before: list[_Source]) -> bool:
        """Return whether the source only shows output or usage of earlier sources."""
        if not any(one.is_code() for one in before):
            return False
        if _PROMPT.search(self.text) or (self.tree and not self.is_code()):
            return True
        known = {name for one in before for name in one.functions}
        if self._only_tests(known) or self._only_signatures(known):
            return True
        reads = self.used & {"input", "stdin", "open"} or "stdin" in self.text
        return not self.functions and bool((self.used | self.defined) & known) and not reads

    def _only_tests(self, known: set[str]) -> bool:
        """Return whether everything that the source defines tests known functions."""
        defined = [n for n in (self.tree.body if self.tree else ()) if isinstance(n, _DEFINITIONS)]
        return bool(defined) and bool(self.used & known) and all(map(_is_test, defined))

    def _only_signatures(self, known: set[str]) -> bool:
        """Return whether the source repeats signatures of known functions, without their bodies."""
        body = [n for n in (self.tree.body if self.tree else ()) if not isinstance(n, _IMPORTS)]
        return bool(body) and all(
            isinstance(node, _FUNCTIONS) and node.name in known and _is_empty(node) for node in body
        )


def _is_test(node: ast.stmt) -> bool:
    """Return whether a definition is a test: a TestCase, or a function named `test_…`."""
    if isinstance(node, ast.ClassDef):
        return any(ast.unparse(base).endswith("TestCase") for base in node.bases)
    return isinstance(node, _FUNCTIONS) and node.name.startswith("test_")


def _is_empty(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function's body is `...` or `pass`, with or without a docstring."""
    return all(
        isinstance(one, ast.Pass)
        or (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
        for one in node.body
    )


def parse_source(text: str) -> ast.Module | None:
    """Return the syntax tree of Python source; None if the text is not Python."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
