r"""Normalises LaTeX: `\dfrac12`, `{1 \over 2}` and `½` become `\frac{1}{2}`."""

from __future__ import annotations

import re
import unicodedata

from batuta.lab.tasks.graders.letters import without_invisible
from batuta.lab.tasks.graders.number_words import SCALES
from batuta.lab.tasks.plain_numbers import ascii_digits, join_thousands
from batuta.language.answer_extraction import closing_brace

_SIGNS = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/",
    "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ",
    "±": r"\pm ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "°": r"^\circ ",
    "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "∶": ":",
    "⁄": "/", "∕": "/", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "λ": r"\lambda ", "μ": r"\mu ",
    "－": "-", "﹣": "-", "‐": "-", "‑": "-", "‒": "-", "，": ",", "．": ".", "＋": "+", "（": "(", "）": ")",
    "ℝ": r"\mathbb{R}", "θ": r"\theta ", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\x00": "",
}  # fmt: skip
_SUPERSCRIPTS, _SUBSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "₀₁₂₃₄₅₆₇₈₉"
_FRACTIONS = "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"


def _nfkc_text(sign: str) -> str:
    """Return a sign in plain characters: `²` as `2`, `½` as `1⁄2`."""
    return unicodedata.normalize("NFKC", sign)


_TRANSLATION = str.maketrans(
    _SIGNS | {sign: rf"\frac{{{_nfkc_text(sign).replace('⁄', '}{')}}}" for sign in _FRACTIONS}
)

_BASES = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def _base_subscript(found: re.Match[str]) -> str:
    return f"_{_BASES.index(found[1]) + 2} "


def _scale_factor(found: re.Match[str]) -> str:
    r"""Return `\times10^{6}` for `million`, followed by the `\text{` before the word, if any."""
    zeros = len(str(SCALES[found[2].casefold()])) - 1
    return f"\\times10^{{{zeros}}}{found[1] or ' '}"


_RAISED = re.compile(f"[{_SUPERSCRIPTS}]+|[{_SUBSCRIPTS}]+")

_RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?:US\s*)?\\text\{\s*\\\$\s*\}", r"\\$"),
        (
            r"(?:US\s*)?\\\$\s*(\d[\d,.]*\d|\d)(?![\d^/(])(?!\s*[a-zA-Z\\{+*-])",
            r"\1\\text{ dollars}",
        ),
        (r"\\\$|\$|(?<!\\)\\[()\[\]](?![a-zA-Z])", " "),
        (r" {2,}", " "),  # else a later rule would take time quadratic in the number of spaces
        (r"\\(?:nicefrac|sfrac)(?![a-zA-Z])", r"\\frac"),
        (r"\{?\}?\^\{?(\d+)\}?/_\{?(\d+)\}?", r"\\frac{\1}{\2}"),
        (r"\+\s*/\s*-", r"\\pm "),
        (r"(?<=\d)\{,\}(?=(?:\d{1,2}|\d{4,})(?!\d))", "."),
        (r"(?<![\d.,])(\d{1,3})[ '’_](\d{3})[ '’_](\d{3})(?![\d/])", r"\1\2\3"),
        (r"(?<![\d.,])(\d{1,3})['_](\d{3})(?![\d/])", r"\1\2"),
        (r"(?<![\d.,])(\d{1,3})\.(\d{3})\.(\d{3})(?![\d.,])", r"\1\2\3"),
        (r"\\(?:bar|dot)\{(\d+)\}", r"\\overline{\1}"),
        (r"(?<=\d\.)(\d*)\((\d+)\)", r"\1\\overline{\2}"),
        (r"(\.\d{0,20}?)(\d{1,6}?)\2++(?:\\[lc]?dots|\.\.\.)", r"\1\\overline{\2}"),
        (r"\\(?:Large|large|LARGE|huge|Huge|small|boxed|checkmark|nobreak)(?![a-zA-Z])", ""),
        (r"\\framebox(?=\{)", ""),
        (r"(?<!\\)\\\Z", ""),
        (r"\\m(?:kern|skip)-?[\d.]+\s*mu", ""),
        (r"\\(?:h|v)?phantom\{[^{}]*\}", ""),
        (r"\\(?:underline|overbrace|underbrace|mathring)(?=\{)", ""),
        (r"\\colon(?![a-zA-Z])", ":"),
        (r"\{:\}", ":"),
        (r"(?<=\d)\s*(?:\\text\{\s*to\s*\}|-?\bto\b-?)\s*(?=\d)", ":"),
        (r"\\(?:mid|vert)(?![a-zA-Z])", "|"),
        (r"\\operatorname\*?", r"\\text"),
        (r"\\dbinom|\\tbinom", r"\\binom"),
        (r"(?<=\d),\s+(?=\d{3}(?!\d))", ";"),
        (r"\\(?:cr|tabularnewline)(?![a-zA-Z])|\\\\\[[\d.]+\s*[a-z]{2}\]", r"\\\\ "),
        (r"smallmatrix\}", "matrix}"),
        (r"\\bmod(?![a-zA-Z])|\\pmod\s*\{?(\d+)\}?|\\p?mod(?![a-zA-Z])", r"\\mod \1"),
        (r"(?<=\d)_\{?\(?\\text\{(two|three|four|five|six|seven|eight|nine|ten)\}\)?\}?", r"_\1 "),
        (r"\((\d+)\)_(?=[{\d])", r"\1_"),
        (r"(?<=\d)_\{\((\d+)\)\}", r"_\1 "),
        (
            r"\{\}\s*_\{?(\d+)\}?\s*C\s*_\{?(\d+)\}?|(?<![\w}])\^\{?(\d+)\}?\s*C\s*_\{?(\d+)\}?",
            r"\\binom{\1\3}{\2\4}",
        ),
        (r"(?<![a-zA-Z\\])C\((\w+),\s*(\w+)\)", r"\\binom{\1}{\2}"),
        (r"(?:US\s*)?\\\$|\bUSD\b", " "),
        (r"(?<=\d)\s*[x×]\s*(?=10\s*\^)", r"\\times "),
        (r"√\s*(\d+|[a-zA-Z]|\([^()]*\))", r"\\sqrt{\1}"),
        (r"(?<=\d)\s*(?:\\[,;: ]|~|\{,\}|,\s*\\!)\s*(?=\d{3}(?!\d))", ","),
        (r"\\!", ""),
        (r"(?<!\\)\\[,;:> ]|~|\\q?quad(?![a-zA-Z])", " "),
        (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits)(?![a-zA-Z])\.?", ""),
        (r"(?<=\d)_(two|three|four|five|six|seven|eight|nine|ten) ?", _base_subscript),
        (r"\\(?:textcolor|color)\{[a-zA-Z]+\}", ""),
        (r"\\(?:boldsymbol|bm|mathbf|mathit|mathsf|bf|pmb)(?![a-zA-Z])", ""),
        (r"\\(?:text(?:bf|it|rm|normal|sf)|mbox|mathrm|rm)(?![a-zA-Z])", r"\\text"),
        (r"\\text\{\s*([ie])\s*\}", r"\1"),
        (r"\\text\{\s*(-?\d[\d,.]*)(?=\s[a-zA-Z ]+\})", r"\1\\text{"),
        (rf"(?<=[\d}}])\s?(\\text\{{)?\s?(?i:({'|'.join(SCALES)})s?)\b", _scale_factor),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\text\{([^a-zA-Z{}]*)\}", r"\1"),
        (r"\\l(?:eq|eqslant|eqq)(?![a-zA-Z])|<=", r"\\le "),
        (r"\\g(?:eq|eqslant|eqq)(?![a-zA-Z])|>=", r"\\ge "),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\\neq(?![a-zA-Z])", r"\\ne "),
        (r"\\(?:varnothing|O)(?![a-zA-Z])", r"\\emptyset "),
        (r"\\lbrace(?![a-zA-Z])", r"\\{"),
        (r"\\rbrace(?![a-zA-Z])", r"\\}"),
        (r"\\[lr]vert(?![a-zA-Z])", "|"),
        (r"\\infin(?:ity)?(?![a-zA-Z])|(?<![a-zA-Z\\])infinity(?![a-zA-Z])", r"\\infty "),
        (r"(?:(?<!\s)\s++)?(?:\\text\{\s*)?\b(?:percent|per cent)\b(?:\s*\})?|\\%", "%"),
        (
            r"(?:(?<!\s)\s++)?(?:\\text\{\s*)?\b[dD]egrees?\b(?:\s*\})?|\\degree(?![a-zA-Z])",
            r"^\\circ ",
        ),
        (r"\^\s*\{\s*\\circ\s*\}", r"^\\circ "),
        (r"(?<![a-zA-Z\\])pi(?![a-zA-Z])", r"\\pi "),
        (r"\*\*", "^"),
        (r"\\cdotp?(?![a-zA-Z])|\*", r"\\cdot "),
        (r"(?<![\w/.^}\])])(\d+)/(\d+)(?![\d/.^_!])", r"\\frac{\1}{\2}"),
        (r"(?<=[\^_])\{\s*([0-9a-zA-Z])\s*\}", r"\1"),
    )
)
_OVER = re.compile(r"\{([^{}]*)\\(over|choose)(?![a-zA-Z])([^{}]*)\}")
_COMMAND = re.compile(r"\\(frac|sqrt(?!\s*\[))(?![a-zA-Z])\s*")
_PLUS = re.compile(r"(?<![0-9a-zA-Z)}\]|!'])\+")
_ATOM = re.compile(r"\\[a-zA-Z]+(?:\{[^{}]*\})?|.", re.DOTALL)
_ROOT = re.compile(r"(?<![a-zA-Z])\\?sqrt\s*\(")
_SPACES = re.compile(r"(?<=(\S))\s+(?=(\S))")


def _braced_script(found: re.Match[str]) -> str:
    """Return raised or lowered digits as TeX writes them: `x²` is `x^{2}`, and `x₁` is `x_{1}`."""
    mark = "_" if found[0][0] in _SUBSCRIPTS else "^"
    return f"{mark}{{{_nfkc_text(found[0])}}}"


def normalize_latex(text: str) -> str:
    """Return `text` in one notation, without insignificant spaces."""
    text = _RAISED.sub(_braced_script, text)
    text = join_thousands(ascii_digits(without_invisible(text)))
    text = " ".join(text.translate(_TRANSLATION).split())
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = _OVER.sub(_rewrite_infix, _rewrite_roots(text))
    text = _SPACES.sub(_kept_space, _add_braces(text)).strip()
    return strip_outer_braces(_PLUS.sub("", text).rstrip(".,;"))


def strip_outer_braces(text: str) -> str:
    """Return `text` without braces around all of it."""
    while text.startswith("{") and closing_brace(text, 0) == len(text) - 1:
        text = text[1:-1].strip()
    return text


def _rewrite_infix(found: re.Match[str]) -> str:
    r"""Rewrite `{1 \over 2}` as `\frac{1}{2}`, and `{5 \choose 2}` as `\binom{5}{2}`."""
    command = "frac" if found[2] == "over" else "binom"
    return f"\\{command}{{{found[1].strip()}}}{{{found[3].strip()}}}"


def _add_braces(text: str) -> str:
    r"""Rewrite `\frac12` as `\frac{1}{2}`, and `\sqrt2` as `\sqrt{2}`."""
    done, at = "", 0
    while found := _COMMAND.search(text, at):
        done += text[at : found.start()] + found[0].strip()
        at = found.end()
        for _ in range(2 if found[1] == "frac" else 1):
            content, at = _read_argument(text, at)
            done += "{" + _add_braces(strip_outer_braces(content)) + "}"
    return done + text[at:]


def _read_argument(text: str, at: int) -> tuple[str, int]:
    """Return a command's next argument, as TeX reads it, and the index at which it ends."""
    while text[at : at + 1] == " ":
        at += 1
    if text[at : at + 1] == "{":
        end = closing_brace(text, at)
        return (text[at + 1 :], len(text)) if end is None else (text[at + 1 : end], end + 1)
    found = _ATOM.match(text, at)
    return (found[0], found.end()) if found else ("", at)


def _rewrite_roots(text: str) -> str:
    r"""Rewrite `sqrt(…)` as `\sqrt{…}`."""
    while found := _ROOT.search(text):
        end = _closing_bracket(text, found.end() - 1)
        if end is None:
            return text
        inner = text[found.end() : end]
        text = f"{text[: found.start()]}\\sqrt{{{inner}}}{text[end + 1 :]}"
    return text


def _closing_bracket(text: str, at: int) -> int | None:
    depth = 0
    for index in range(at, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return index
    return None


def _kept_space(found: re.Match[str]) -> str:
    """Keep a space that separates two digits or two letters."""
    before, after = found.groups()
    apart = (before.isdigit() and after.isdigit()) or (before.isalpha() and after.isalpha())
    return " " if apart else ""
