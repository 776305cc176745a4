"""Values that differ by little, or that are next to nothing: what differs is told by relative bounds."""

from fractions import Fraction

import pytest

from batuta.lab.tasks.graders import FreeFormGrader, MathsGrader
from batuta.lab.tasks.graders.numbers import is_same_number, last_place

pytestmark = pytest.mark.anyio

SAME = (
    ("2^{1000}", "4^{500}"),
    (r"\sqrt{6}", r"\sqrt{2}\sqrt{3}"),
    ("0", r"\sqrt{6}-\sqrt{2}\sqrt{3}"),
    ("0", r"\sin\pi"),
    ("10^{-60}", r"10^{-60}+\sin\pi"),
    (r"10^{60}+\sqrt2-10^{60}", r"\sqrt2"),
    (r"\lfloor \sqrt2\sqrt2\rfloor", "2"),
    (r"\lfloor 1-e^{-100}\rfloor", "0"),
    ("x^2+y^2=1", "2x^2+2y^2=2"),
    ("y<x+1", "y<1+x"),
    (r"\frac{1}{3}", "0.333333"),
    (r"\frac{10000000}{3}", "3333333.3"),
    (r"\frac{10^{21}}{3}", r"3.33333\times 10^{20}"),
    (r"\pi", "3.14159"),
    (r"10\pi", "31.4159"),
    (r"\frac{\pi}{10^{40}}", r"3.14159\times10^{-40}"),
    (r"100\text{ cm}", r"1\text{ m}"),
    (r"e^{i\pi}", "-1"),
    (r"\frac{x}{3}", "0.333333x"),
    ("x^{0.5}", r"\sqrt{x}"),
    ("0.1+0.2", "0.3"),
    ("3e8", r"3\times10^8"),
    (r"\int_0^1 x dx", r"\frac12"),
    (r"\lim_{x\to0}\frac{\sin x}{x}", "1"),
    (r"\log_{2} 8", "3"),
    ("1-(1-10^{-40})", "10^{-40}"),
    (r"1-\cos(10^{-30})", r"2\sin^2(10^{-30}/2)"),
    (r"\frac{7}{52!}", r"\frac{7}{51!\cdot52}"),
    (r"\sqrt[3]{10^{-120}}", "10^{-40}"),
    (r"0\text{ °C}", r"32\text{ °F}"),
)
DIFFERENT = (
    (r"\frac{1}{30!}", r"\frac{1}{31!}"),
    ("(1/2)^{200}", "(1/3)^{200}"),
    (r"\frac{x}{10^{40}}", r"\frac{2x}{10^{40}}"),
    ("10^{40}", "10^{40}+1"),
    ("2^{1000}", "2^{1000}+1"),
    ("e^{100}", "e^{100}+1"),
    ("e^{1000}", "e^{1000}+1"),
    ("1", r"\tanh 100"),
    ("1", "1+e^{-1000}"),
    ("x", "x+10^{-40}"),
    ("x", "x+0.0000001"),
    ("1000000+i", "1000000+0.5i"),
    ("3", "3+0.000001i"),
    ("10^{-40}", r"\sin\pi"),
    (r"2\cdot10^{-60}", r"10^{-60}+\sin\pi"),
    (r"\sqrt2", r"\sqrt{2+10^{-50}}"),
    (r"\lfloor 3-10^{-40}\rfloor", "3"),
    (r"\lfloor 1-e^{-100}\rfloor", "1"),
    ("y=x+10^{-40}", "y=x"),
    ("x+y=10^{-40}", r"x+y=2\cdot 10^{-40}"),
    ("y<x", "y<x+10^{-20}"),
    (r"\frac{10000000}{3}", "3333333"),
    (r"\frac{\pi}{10^{40}}", r"2.14159\times10^{-40}"),
    ("10^{100}/3", "(10^{100}+1)/3"),
    ("(0,10^{-40})", r"(0,2\cdot 10^{-40})"),
    (r"(10^{-40},\infty)", r"(10^{-41},\infty)"),
    (
        r"\begin{pmatrix}10^{-40}&0\\0&1\end{pmatrix}",
        r"\begin{pmatrix}10^{-50}&0\\0&1\end{pmatrix}",
    ),
    (r"1000000001\text{ m}", r"1000000\text{ km}"),
    (r"10^{-40}\text{ m}", r"2\cdot10^{-40}\text{ m}"),
    (r"10^{-40}\%", r"10^{-41}\%"),
    ("10^{-40}i", "10^{-41}i"),
    ("1+10^{-40}i", "1"),
    ("1e-40", "2e-40"),
    ("10^{400}", "10^{401}"),
    ("10^{-400}", "10^{-401}"),
    ("10^{-500}", "10^{-501}"),
    ("10^{-5000}", "10^{-5001}"),
    ("10^{-50000}", "10^{-50001}"),
    (r"10^{-40}\int_0^1 x dx", "10^{-40}"),
    (r"10^{-40}\Gamma(5)", r"10^{-40}\Gamma(6)"),
    (r"\log(10^{-40})", r"\log(10^{-41})"),
    (r"10^{-40}\log 5", r"10^{-40}\log 6"),
    (r"10^{-40}\arcsin x", r"2\cdot10^{-40}\arcsin x"),
    (r"\frac{1}{e^{100}}", r"\frac{1}{e^{101}}"),
    (r"\frac{1}{\binom{200}{100}}", r"\frac{1}{\binom{200}{99}}"),
    (r"\frac{1}{365^{30}}", r"\frac{1}{366^{30}}"),
    ("1-(1-10^{-40})", "0"),
    (r"1-\cos(10^{-30})", "0"),
    (r"\frac{1}{10^{40}}\text{ or }2", r"\frac{2}{10^{40}}\text{ or }2"),
    (r"\{10^{-40}\}", r"\{10^{-41}\}"),
    (r"\langle 10^{-40},1\rangle", r"\langle 10^{-41},1\rangle"),
    ("1:10^{40}", "1:10^{41}"),
    (r"P(A)=\frac{1}{52!}", r"P(A)=\frac{1}{51!}"),
    (r"6.626\times10^{-34}\text{ J s}", r"6.627\times10^{-34}\text{ J s}"),
    (r"\sqrt[3]{10^{-120}}", r"2\cdot10^{-40}"),
    ("(1+10^{-20})^2", r"1+2\cdot10^{-20}"),
    ("x=10^{-40}", "x=0"),
    ("a=1,b=10^{-40}", "a=1,b=10^{-41}"),
    ("|10^{-40}|", "0"),
    ("10^{-40}x^2+1", "10^{-41}x^2+1"),
    ("e^{-50}x", "e^{-51}x"),
    ("x+e^{-200}", "x"),
    (r"\pi x", r"(\pi+10^{-40})x"),
    (r"\sum_{k=1}^{3}k10^{-40}", r"5\cdot 10^{-40}"),
    (r"0.01\text{ °C}", r"32\text{ °F}"),
)
MEASURED_ALIKE = (("0.33", "1/3"), ("0.67", "2/3"), ("0.17", "1/6"))
MEASURED_OTHERWISE = (("0.01", "1/150"), ("0.0", "1/300"), ("0.00", "1/3000"))
"""A target with two decimals, and thirds that are rounded to it however far off they are."""


@pytest.mark.parametrize(("target", "answer"), SAME)
async def test_the_same_value_is_right_whichever_way_it_is_written(pool, target, answer):
    for one, other in ((target, answer), (answer, target)):
        grade = await MathsGrader(pool).grade(f"$\\boxed{{{other}}}$", one)
        assert grade.score == 1, grade


@pytest.mark.parametrize(("target", "answer"), DIFFERENT)
async def test_another_value_is_wrong_however_small_the_difference_is(pool, target, answer):
    for one, other in ((target, answer), (answer, target)):
        grade = await MathsGrader(pool).grade(f"$\\boxed{{{other}}}$", one)
        assert grade.score == 0, grade


@pytest.mark.parametrize(("target", "answer"), MEASURED_ALIKE + MEASURED_OTHERWISE)
async def test_a_third_is_rounded_to_two_decimals_that_tell_it(pool, target, answer):
    grade = await FreeFormGrader(pool).grade(answer, target)
    assert grade.score == ((target, answer) in MEASURED_ALIKE), grade


def test_a_rounded_number_is_off_by_less_than_its_last_digit_counts():
    assert [last_place(Fraction(text)) for text in ("0.25", "1.5", "3", "1200", "0")] == [
        Fraction(1, 100), Fraction(1, 10), 1, 100, 1,
    ]  # fmt: skip
    assert is_same_number(Fraction(10**7, 3), Fraction("3333333.3"))
    assert not is_same_number(Fraction(3 * 10**6 + 1, 3), Fraction("1000000.5"))
