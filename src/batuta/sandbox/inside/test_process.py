"""Executes a program or its tests, in the child process of a test, and reports how it ended."""

from __future__ import annotations

import atexit
import json
import os
import sys
from contextlib import suppress

from .messages import write_all
from .peer import PeerDisconnected
from .program_peer import ProgramPeer
from .tests_peer import run_tests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PACKAGE_FOLDER = os.path.dirname(__file__)  # noqa: PTH120 - no pathlib here
EXITED, RAISED, OUT_OF_MEMORY = (
    b'{"end": "%s"}' % end for end in (b"exited", b"raised", b"memory")
)


def run_and_report(run: Callable[[], dict[str, Any]], result: int) -> int:
    """Run the test, write to the descriptor `result` how it ended, and return the exit status."""
    process = os.getpid()
    status, report = 1, OUT_OF_MEMORY
    try:
        lift_digit_limit()
        report = json.dumps({"end": "returned"} | run(), default=plain_value).encode()
        status = 0
    except SystemExit as error:
        status, report = exit_status(error.code), EXITED
    except MemoryError:
        pass  # without memory for another report
    except BaseException as error:  # noqa: BLE001 - whatever the program raises
        report = RAISED
        sys.excepthook(type(error), error.with_traceback(program_traceback(error)), None)
    finish_interpreter()
    if process == os.getpid():  # a process that the program forked ends here as well
        write_all(result, report)
    return status


def lift_digit_limit() -> None:
    """Allow integers of any length to be read and written; a test's time is limited anyway."""
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)


def plain_value(value: Any) -> Any:
    """Return the plain value of an object with `tolist`, such as a numpy number or array.

    Raises:
        TypeError: the object has no `tolist`.
    """
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} was returned, which JSON cannot represent")


def run_program(order: dict[str, Any]) -> dict[str, Any]:
    """Run the program and the test; return the fields that a call or test adds to the report."""
    name = "__main__" if order["kind"] == "script" else "program"
    module = sys.modules[name] = type(sys)(name)
    namespace = module.__dict__
    sys.argv = ["program.py"]
    execute_source(order["source"], "program.py", namespace)
    if order["kind"] == "call":
        entry = eval(order["entry"], namespace)  # noqa: S307 - this is what a sandbox is for
        return {"value": entry(*map(json.loads, order["arguments"]))}
    if order["kind"] == "together":
        execute_source(order["code"], "check.py", namespace)
        return {"token": order["token"]}
    return {}


def serve_program(order: dict[str, Any], pipes: tuple[int, int, int]) -> int:
    """Run the program and serve its tests, which run in another process; return the exit status."""
    lift_digit_limit()
    program = ProgramPeer(pipes, order, execute_source)
    status = 1
    try:
        program.load()
    except SystemExit as error:
        status, end = exit_status(error.code), "exited"
    except MemoryError:
        end = "memory"
    except PeerDisconnected:
        return 0
    except BaseException as error:  # noqa: BLE001 - whatever the program raises
        end = "raised"
        sys.excepthook(type(error), error.with_traceback(program_traceback(error)), None)
    else:
        with suppress(PeerDisconnected):
            program.serve()
        return 0
    with suppress(PeerDisconnected):
        program.send({"end": end})
    return status


def run_separate_tests(
    order: dict[str, Any], code: str, pipes: tuple[int, int, int]
) -> dict[str, Any]:
    """Run tests against a program in another process."""
    return run_tests(pipes, order, code, execute_source)


def execute_source(source: str, name: str, namespace: dict[str, Any]) -> None:
    """Run source, which does not inherit the `__future__` imports of this file."""
    exec(compile(source, name, "exec", dont_inherit=True), namespace)  # noqa: S102 - same


def exit_status(code: Any) -> int:
    """Return the exit status for an argument of `sys.exit`; print it unless None or an integer."""
    if code is None or isinstance(code, int):
        return (code or 0) & 255
    print(code, file=sys.stderr)  # noqa: T201 - as the interpreter
    return 1


def program_traceback(error: BaseException) -> Any:
    """Return the traceback without the frames of this package at its start."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(PACKAGE_FOLDER):
        trace = trace.tb_next
    return trace


def finish_interpreter() -> None:
    """Do what the interpreter does at its end: wait for threads, call exit functions, flush."""
    if threading := sys.modules.get("threading"):
        threading._shutdown()  # noqa: SLF001 - there is no public name
    atexit._run_exitfuncs()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - same
    for stream in (sys.stdout, sys.__stdout__, sys.stderr):
        with suppress(Exception):  # the program may have put anything there
            stream.flush()  # pyright: ignore[reportOptionalMemberAccess]
