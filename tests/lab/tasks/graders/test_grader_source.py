"""Which part of an answer is the program."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.lab.tasks.graders.code_extraction import extract_program

F = "def f(n):\n    return n + 1\n"
G = "def g(n):\n    return f(n) * 2\n"
BLOCK = f"```python\n{F}```"
CASES = {
    "one block": (BLOCK, F),
    "a bare block of output after it": (f"{BLOCK}\nIt prints:\n```\n4\n```", F),
    "a bare block of output that is words": (f"{BLOCK}\nOutput:\n```\nall 3 are right\n```", F),
    "output that looks like an assignment": (f"{BLOCK}\n```\nn = 4\n```", F),
    "output that looks like an annotation": (f"{BLOCK}\n```\nSum: 5\n```", F),
    "output in a block that is called Python": (f"{BLOCK}\n```python\n[1, 2]\n```", F),
    "a bare block of usage": (f"{BLOCK}\nUse it so:\n```\nprint(f(3))\n```", F),
    "a block of usage that is Python": (f"{BLOCK}\n```python\nprint(f(3))  # 4\n```", F),
    "usage that imports it": (f"{BLOCK}\n```python\nfrom mine import f\nprint(f(3))\n```", F),
    "usage that checks it": (f"{BLOCK}\n```python\nassert f(3) == 4\nassert f(0) == 1\n```", F),
    "a session": (f"{BLOCK}\n```\n>>> f(3)\n4\n```", F),
    "a session that is Python": (f"{BLOCK}\n```python\n>>> f(3)\n4\n```", F),
    "a shell": (f"{BLOCK}\n```bash\npython mine.py\n```", F),
    "all bare, with output": (f"```\n{F}```\n```\n4\n```", F),
    "a bare script, with output": ("```\nprint(1 + 2)\n```\nIt says\n```\nn = 3\n```", "print(1 + 2)\n"),
    "a numbered list": ("1. So:\n   ```python\n   def f(n):\n       return n + 1\n   ```\n2. Done.", F),
    "a fence behind a number": ("1. ```python\n   def f(n):\n       return n + 1\n   ```", F),
    "a fence behind a dash": ("- ```python\n  def f(n):\n      return n + 1\n  ```", F),
    "a list in a list": ("1. a\n   - b\n     ```py\n     def f(n):\n         return n + 1\n     ```", F),
    "tabs": ("1.\t```python\n\tdef f(n):\n\t    return n + 1\n\t```", F),
    "a fence that is less indented than its code": ("```python\n    def f(n):\n        return n + 1\n```", F),
    "a quotation": ("> ```python\n> def f(n):\n>     return n + 1\n> ```", F),
    "tildes": (f"~~~python\n{F}~~~", F),
    "tildes around a fence": ('~~~py\nx = """\n```\n"""\n~~~', 'x = """\n```\n"""\n'),
    "four backticks": (f"````python\n{F}````", F),
    "Markdown that is indented": ("So:\n\n    def f(n):\n        return n + 1\n\nDone.", F.strip()),
    "indented words and no program": ("So:\n\n    f(3) is 4\n", "So:\n\n    f(3) is 4"),
    "a fence of HTML": (f"<pre><code>{F.strip()}</code></pre>", F),
    "a wrong one and its correction": (f"```python\ndef f(n):\n    return n\n```\nNo:\n{BLOCK}", F),
    "another language behind it": (f"{BLOCK}\nIn C:\n```c\nint f(int n) {{ return n + 1; }}\n```", F),
    "a fence within a docstring": (
        '````python\ndef f(n):\n    """Adds.\n\n    ```\n    f(3)\n    ```\n    """\n    return n + 1\n````',
        'def f(n):\n    """Adds.\n\n    ```\n    f(3)\n    ```\n    """\n    return n + 1\n',
    ),
    "a title": (f'```python title="mine.py"\n{F}```', F),
    "attributes": (f"```{{.python .numberLines}}\n{F}```", F),
    "attributes with spaces": (f'``` {{ .python startFrom="1" }}\n{F}```', F),
    "a colon": (f"```python:mine.py\n{F}```", F),
    "the name of a file": (f"```mine.py\n{F}```", F),
    "highlighted lines": (f"```python {{1,3-4}}\n{F}```", F),
    "capitals": (f"```Python\n{F}```", F),
    "two blocks, the helper first": (f"{BLOCK}\nthen\n```python\n{G}```", f"{F}\n{G}"),
    "three, with imports": (
        f"```python\nimport math\n```\n{BLOCK}\n```python\ndef g(n):\n    return f(math.ceil(n))\n```",
        f"import math\n\n{F}\ndef g(n):\n    return f(math.ceil(n))\n",
    ),
    "a helper in a bare block": (f"```\n{F}```\n```python\n{G}```", f"{F}\n{G}"),
    "a script in two blocks": (
        "```python\nn = int(input())\n```\n```python\nprint(n + 1)\n```",
        "n = int(input())\n\nprint(n + 1)\n",
    ),
    "a function, then what reads and prints": (
        f"{BLOCK}\n```python\nprint(f(int(input())))\n```",
        f"{F}\nprint(f(int(input())))\n",
    ),
    "a second attempt": (f"```python\ndef f(n): return 0\n```\nNo:\n{BLOCK}", F),
    "a second attempt with the imports of the first": (
        "```python\nimport math\ndef f(n): return 0\n```\n```python\ndef f(n): return math.pi\n```",
        "import math\ndef f(n): return 0\n\ndef f(n): return math.pi\n",
    ),
    "another script before it": ("```python\nprint(1)\n```\nor\n```python\nprint(2)\n```", "print(2)\n"),
    "thoughts": (f"<think>```python\nx = 2\n```</think>{BLOCK}", F),
    "another language alone": ("```cpp\nint main() {}\n```", None),
    "cut": ("```python\ndef f(n):", None),
    "cut behind a whole one": (f"{BLOCK}\nbetter:\n```python\ndef f(", None),
    "the helper last": (f"```python\n{G}```\nwith the helper\n{BLOCK}", f"{F}\n{G}"),
    "HTML": (f'<pre><code class="language-python">\n{F.strip()}</code></pre>', F),
    "HTML with entities": ("<pre><code>print(1 &lt; 2)</code></pre>", "print(1 < 2)\n"),
    "a test case behind it": (
        f"{BLOCK}\n```python\nimport unittest\nclass T(unittest.TestCase):\n    def test(self): f(1)\n```",
        F,
    ),
    "test functions behind it": (f"{BLOCK}\n```python\ndef test_f():\n    assert f(1) == 2\n```", F),
    "the signature behind it": (f"{BLOCK}\n```python\ndef f(n: int) -> int: ...\n```", F),
    "sentences without a block": (f"Here it is:\n\n{F}\nIt adds one to its number.", F.strip()),
    "a mark that nobody sees": (f"```python\n\ufeff{F}```", F),
    "spaces that do not break": (f"```python\n{F.replace(' ', chr(0xA0))}```", F),
    "four tildes with attributes": (f'~~~~python3 title="mine.py" linenos\n{F}~~~~', F),
    "a list within a list, with tabs": ("- a\n\t1. b\n\t\t```python\n\t\tdef f(n):\n\t\t    return n + 1\n\t\t```", F),
    "a quotation within a list": ("1. So:\n   > ```python\n   > def f(n):\n   >     return n + 1\n   > ```", F),
    "tags in brackets": (f"[PYTHON]\n{F}[/PYTHON]", F),
    "an object of JSON": ('{"code": "def f(n):\\n    return n + 1\\n"}', F.strip()),
    "an object of JSON in a block": ('```json\n{"solution": "def f(n):\\n    return n + 1\\n"}\n```', F.strip()),
    "line ends of Windows": (BLOCK.replace("\n", "\r\n"), F),
    "what the button to copy left": (f"python\nCopy code\n{F}", F.strip()),
    "tags of XML": (f"<code>\n{F}</code>", F),
    "a folded block": (f"<details>\n<summary>Code</summary>\n\n{BLOCK}\n\n</details>", F),
    "a changed version of a second function only": (
        f"```python\n{F}\n{G}```\nFaster:\n```python\ndef g(n):\n    return 2 * n + 2\n```",
        f"{F}\n{G}\ndef g(n):\n    return 2 * n + 2\n",
    ),
    "a brute force, then the answer": (
        f"Brute force:\n```python\ndef f(n):\n    return sum(1 for _ in range(n + 1))\n```\nBetter:\n{BLOCK}", F
    ),
    "a table behind it": (f"{BLOCK}\n\n| n | f(n) |\n|---|---|\n| 3 | 4 |", F),
    "a sentence on the fence's line": (f"Here: ```python\n{F}```", F),
    "no block": ("x = 1", "x = 1"),
    "nothing": (" \n", None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_the_program(name):
    answer, program = CASES[name]
    assert extract_program(answer) == program


@given(
    st.lists(st.sampled_from([*"`~ \n1.->#:x=(", "```", "~~~", "python", F, "   "])).map("".join)
)
@settings(max_examples=3 * settings().max_examples, deadline=None)
def test_any_answer_can_be_looked_through(answer):
    assert extract_program(answer) is None or isinstance(extract_program(answer), str)


def test_a_great_many_fences_take_no_time_that_grows_with_their_square():
    assert extract_program("```python\nx = 1\n```\n" * 4000)


def test_a_second_solution_under_another_name_does_not_replace_the_first():
    first = "def is_prime(n):\n    return all(n % d for d in range(2, n))\n"
    other = "def is_prime_fast(n):\n    return n > 1\n"
    answer = f"```python\n{first}```\nAlternatively, faster:\n```python\n{other}```"
    found = extract_program(answer)
    assert found is not None and "def is_prime(" in found and "def is_prime_fast(" in found
    again = extract_program(answer.replace("is_prime_fast", "is_prime"))
    assert again == other.replace("is_prime_fast", "is_prime")
