"""Compares two answers in a process of the pool, under limits that the kernel enforces."""

from __future__ import annotations

import logging
import math
import resource
import sys
from functools import cache

MEMORY_LIMIT = 4 << 30
"""Maximum bytes of address space."""

CPU_SECONDS = 3
"""Maximum processor seconds of one comparison, which may take up to a second more. The kernel
enforces the limit, whatever the load of the machine, and even if the calling process has died."""

WARM_UP_SECONDS = 60
"""Maximum processor seconds of the first call of a process, which loads sympy and pint."""

WARM_UP = (
    (r"\frac{1}{\sqrt{3}}", r"\frac{\sqrt{3}}{3}"),
    (r"\frac{m(m-1)}{2}", r"\frac{m^2-m}{2}"),
    (r"\cos2t", r"\cos^2t-\sin^2t"),
    (r"\log_39", r"\frac{2e^{i\pi}}{-1}"),
    ("y=3x-2", "3x-y-2=0"),
    ("(x+3)^2+(y-1)^2=16", "x^2+y^2+6x-2y-6=0"),
    (r"\sin60^\circ", r"\frac{\sqrt{3}}{2}"),
    (r"\frac{1}{t^2}", "t^{-2}"),
    (r"\frac{b_1-b_2}{3}", "(b_1-b_2)/3"),
    (r"\sqrt{7+2\sqrt{6}}", r"1+\sqrt{6}"),
    (r"|t|\arctan3", r"\sqrt{t^2}\tan^{-1}3"),
    (r"3\text{m}", r"300\text{cm}"),
)
"""Pairs that exercise the parser, sympy and pint once."""


@cache
def _prepare_process() -> None:
    """Load and warm up the slow libraries, once per process."""
    sys.set_int_max_str_digits(0)
    logging.disable(logging.CRITICAL)
    for target, answer in WARM_UP:
        _compare_values(target, answer, 0.0)


def compare_answers(target: str, answer: str, near: float) -> bool:
    """Return whether two answers, in the form that `normalize_latex` returns, are the same.

    `near` is the relative error up to which two numbers count as the same.

    Raises:
        MemoryError: out of memory.
        RecursionError: an expression is nested too deeply.
    """
    _prepare_process()
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    wanted = math.ceil(used.ru_utime + used.ru_stime) + CPU_SECONDS
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
    return _compare_values(target, answer, near)


def _compare_values(target: str, answer: str, near: float) -> bool:
    from batuta.lab.tasks.graders import forms, symbolic, values  # noqa: PLC0415 - sympy is slow
    from batuta.lab.tasks.graders.form_comparison import is_same_form  # noqa: PLC0415 - same

    def algebra(wanted: str, given: str, close: float) -> bool:
        return symbolic.is_same_expression(wanted, given, max(near, close))

    def equal(wanted: forms.ValueForm, given: forms.ValueForm) -> bool:
        return values.is_same_value(wanted, given, algebra)

    return is_same_form(forms.parse_form(target), forms.parse_form(answer), equal)
