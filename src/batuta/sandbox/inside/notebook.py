"""The notebook around a model's programs, which the sandbox runs as a script.

It reads the earlier programs, the new program and files from its input, and discards the output of
the earlier programs. Then it prints a mark before each picture that the new program drew, before
each file that the new program wrote, and at the end.
"""
# ruff: noqa: PTH113, PTH114, PTH118, PTH119, PTH123, PTH109 - no pathlib, see the package

import ast
import base64
import contextlib
import hashlib
import io
import json
import linecache
import os
import sys
import traceback
from typing import Any

_PLOTS = ".".join(("matplotlib", "py" + "plot"))  # split, so that the sandbox does not preload it
_OURS = {(lambda: None).__code__.co_filename, ast.__file__}
"""Files whose frames are left out at the beginning of a traceback."""


def run_code(code: str, name: str, space: dict[str, Any], *, shows: bool) -> None:
    """Run a program in the namespace.

    With `shows`, print the value of its last line unless that is None, as a notebook does.
    """
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), space)  # noqa: S102 - in the sandbox
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), name, "eval"), space)  # noqa: S307 - same
        if shows and value is not None:
            print(repr(value))  # noqa: T201 - its output


def write_pictures(mark: str) -> None:
    """Print the open figures after the mark and close them; without a mark, only close them."""
    plots = sys.modules.get(_PLOTS)
    if plots is None:
        return
    for number in plots.get_fignums() if mark else ():
        picture = io.BytesIO()
        plots.figure(number).savefig(picture, format="png")
        print(mark + base64.b64encode(picture.getvalue()).decode())  # noqa: T201 - its output
    plots.close("all")


def put_files(folder: str, given: dict[str, str]) -> None:
    """Write the given files into the folder; their contents, by name, are in Base64."""
    for name, content in given.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(base64.b64decode(content))


def list_files(folder: str) -> dict[str, str]:
    """Return the paths of the files below the folder, with their SHA-256 digests.

    Links, hidden files, and folders with names that begin with `.` or `__` are left out.
    """
    found: dict[str, str] = {}
    for parent, inner, names in os.walk(folder):
        inner[:] = [one for one in inner if not one.startswith((".", "__"))]
        for name in sorted(names):
            path = os.path.join(parent, name)
            if name.startswith(".") or os.path.islink(path) or not os.path.isfile(path):
                continue
            with contextlib.suppress(OSError), open(path, "rb") as file:
                found[path] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def write_files(mark: str, new: list[str], most: int, room: int) -> None:
    """Print a mark and the name and content of each file, both in Base64.

    The content is `-` after `most` files, for a file that would exceed `room` bytes in total, and
    for an unreadable file; after twice as many files nothing more is printed.
    """
    for number, path in enumerate(new[: 2 * most]):
        name = base64.b64encode(os.path.basename(path).encode("utf-8", "replace"))
        content = "-"
        with contextlib.suppress(OSError), open(path, "rb") as file:
            whole = file.read(room + 1) if number < most else b""
            if number < most and len(whole) <= room:
                room -= len(whole)
                content = base64.b64encode(whole).decode()
        print(f"{mark}{name.decode()}:{content}")  # noqa: T201 - its output


def run_before(codes: list[str], space: dict[str, Any]) -> None:
    """Run the earlier programs; discard their errors and all output, also of child processes."""
    shown = [(stream, os.dup(stream)) for stream in (1, 2)]
    with open(os.devnull, "w", encoding="utf-8") as discarded:
        for stream, _ in shown:
            os.dup2(discarded.fileno(), stream)
        with contextlib.redirect_stdout(discarded), contextlib.redirect_stderr(discarded):
            for number, code in enumerate(codes, 1):
                with contextlib.suppress(BaseException):  # also KeyboardInterrupt and the like
                    run_code(code, f"program {number}", space, shows=False)
                write_pictures("")
    for stream, kept in shown:
        os.dup2(kept, stream)
        os.close(kept)


def run_all() -> None:
    """Run the programs that standard input contains."""
    given, folder = json.loads(sys.stdin.read()), os.getcwd()
    os.environ.setdefault("MPLBACKEND", "Agg")
    put_files(folder, given["given"])
    main = sys.modules["__main__"] = type(sys)("__main__")  # pickle looks classes up there
    space, number = main.__dict__, len(given["before"]) + 1
    run_before(given["before"], space)
    status: Any = 0
    files = list_files(folder) if given["most_files"] else {}
    try:
        run_code(given["code"], f"program {number}", space, shows=given["shows"])
    except SystemExit as error:
        status = error.code
    except BaseException as error:  # noqa: BLE001 - whatever a program raises
        inner = error.__traceback__.tb_next if error.__traceback__ else None
        while inner is not None and inner.tb_frame.f_code.co_filename in _OURS:
            inner = inner.tb_next
        traceback.print_exception(type(error), error, inner)
        status = 1
    write_pictures(given["mark"])
    if given["most_files"]:
        new = [path for path, digest in list_files(folder).items() if files.get(path) != digest]
        write_files(given["mark"], new, given["most_files"], given["most_bytes"])
    print(f"{given['mark']}!")  # noqa: T201 - read as the end
    if status:
        sys.exit(status)


if __name__ == "__main__":
    run_all()
