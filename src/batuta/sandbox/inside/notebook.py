"""The program around a model's programs: what the sandbox runs, with the standard library alone.

It reads the earlier programs and the new one from its input, runs the earlier ones unheard, and
writes each picture that the new one drew after a mark.
"""

import ast
import base64
import contextlib
import io
import json
import linecache
import os
import sys
import traceback
from typing import Any

_PLOTS = ".".join(("matplotlib", "py" + "plot"))  # not as one word: the sandbox would load it
_OURS = {(lambda: None).__code__.co_filename, ast.__file__}


def run_code(code: str, name: str, space: dict[str, Any], *, shows: bool) -> None:
    """Run a program in the namespace; the value of its last line is printed, as in a notebook."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), space)  # noqa: S102 - in the sandbox
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), name, "eval"), space)  # noqa: S307 - same
        if shows and value is not None:
            print(repr(value))  # noqa: T201 - its output


def write_pictures(mark: str) -> None:
    """Write what was drawn and close it; without a mark it is closed alone."""
    plots = sys.modules.get(_PLOTS)
    if plots is None:
        return
    for number in plots.get_fignums() if mark else ():
        picture = io.BytesIO()
        plots.figure(number).savefig(picture, format="png")
        print(mark + base64.b64encode(picture.getvalue()).decode())  # noqa: T201 - its output
    plots.close("all")


def run_all() -> None:
    """Run what the input says."""
    given = json.loads(sys.stdin.read())
    os.environ.setdefault("MPLBACKEND", "Agg")
    space: dict[str, Any] = {"__name__": "__main__"}
    for number, code in enumerate(given["before"], 1):
        unheard = io.StringIO()
        with contextlib.redirect_stdout(unheard), contextlib.redirect_stderr(unheard):
            with contextlib.suppress(Exception, SystemExit):
                run_code(code, f"program {number}", space, shows=False)
            write_pictures("")
    try:
        run_code(given["code"], f"program {len(given['before']) + 1}", space, shows=True)
    except Exception as error:  # noqa: BLE001 - whatever a program raises
        inner = error.__traceback__.tb_next if error.__traceback__ else None
        while inner is not None and inner.tb_frame.f_code.co_filename in _OURS:
            inner = inner.tb_next
        traceback.print_exception(type(error), error, inner)
        write_pictures(given["mark"])
        sys.exit(1)
    write_pictures(given["mark"])


if __name__ == "__main__":
    run_all()
