"""A tuning's recommendation: the system expected to be worth most, and how sure that is. Pure.

Proof is separate: it is reported in a sentence of its own, with its corrected test, and decides
only if the settings ask for proven systems alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from batuta.core import WorkerId
from batuta.lab.tune.expected_gain import SURE_ENOUGH, ExpectedGain
from batuta.lab.tune.judge import Comparison, Verdict
from batuta.lab.tune.result import TuneResult
from batuta.lab.tune.stages import BEST_SINGLE, MINI, SELF_CONSISTENCY, ULTRA

Json = dict[str, Any]

SELECTOR, SINGLES_SELECTOR = "selector", "selector-mini"
"""The folders, beside the report, of the selectors of workflows and of single workers."""
PROVEN = frozenset({Verdict.BETTER, Verdict.CHEAPER})


def recommend_systems(result: TuneResult, *, only_proven: bool = False) -> Json:
    """Choose what answers as mini and as ultra, and say why.

    Args:
        result: of the tuning.
        only_proven: whether nothing is recommended in the place of the best single worker that the
            judgement has not proven to be better, or cheaper and not worse by more than two points.
    """
    best = result.pool.ranked()[0].id
    if not result.comparisons:
        why = "Nothing was judged, so nothing is recommended beyond the best single worker."
        return {ULTRA: None, MINI: None, "best": best, "expected": {}, "why": [why]}
    ultra = _choose_system(result, (ULTRA, MINI), only_proven=only_proven)
    mini = _choose_system(result, (MINI,), only_proven=only_proven)
    folders = {ULTRA: SELECTOR, MINI: SINGLES_SELECTOR}
    chosen = {ULTRA: ultra, MINI: mini}
    reasons = [
        _recommendation_reason(result, served, one, best, only_proven=only_proven)
        for served, one in chosen.items()
    ]
    reasons += [_proof_sentence(one) for one in result.comparisons]
    return {
        **{served: folders[one] if one else None for served, one in chosen.items()},
        "best": best,
        "expected": {
            f"{one} over {other}": {
                "gain": round(found.mean, 6),
                "probability": round(found.probability, 6),
                "questions": found.questions,
            }
            for (one, other), found in result.expected.items()
        },
        "why": [*reasons, *_vote_sentence(result, ultra)],
    }


def _choose_system(result: TuneResult, systems: Iterable[str], *, only_proven: bool) -> str | None:
    """Return the system that is expected to be worth most, if that is likely enough."""
    against_best = [one for one in result.comparisons if one.opponent != MINI]
    proven = {one.nominee for one in against_best if one.verdict in PROVEN}
    able = [
        name
        for name in systems
        if _find_gain(result, name).probability >= SURE_ENOUGH
        and (name in proven or not only_proven)
    ]
    if len(able) > 1 and (between := result.expected.get((able[0], able[1]))) is not None:
        return able[0] if between.mean >= 0 else able[1]
    return max(able, key=lambda name: _find_gain(result, name).mean, default=None)


def _find_gain(result: TuneResult, name: str) -> ExpectedGain:
    return result.expected[name, BEST_SINGLE]


def _recommendation_reason(
    result: TuneResult, served: str, chosen: str | None, best: WorkerId, *, only_proven: bool
) -> str:
    gain = _find_gain(result, chosen or served)
    sure = format_probability(gain.probability)
    worth = (
        f"expected to be worth {100 * gain.mean:+.1f} points more than the best single worker, "
        f"{best}, its calls counted; {sure} sure that it is worth more, from {gain.questions} "
        "questions"
    )
    if chosen is not None:
        what = "the selector of workflows" if chosen == ULTRA else "the selector of single workers"
        return f"batuta-{served}: {what}; {worth}."
    if gain.probability >= SURE_ENOUGH and only_proven:
        return (
            f"batuta-{served}: the best single worker, {best}; the selector is {worth}, but only "
            "what is proven is wanted."
        )
    if not gain.questions or gain.mean == 0:
        return f"batuta-{served}: the best single worker, {best}; the search found nothing better."
    return (
        f"batuta-{served}: the best single worker, {best}; the selector is {worth}, less than the "
        f"{100 * SURE_ENOUGH:.0f} % that are asked for."
    )


def format_probability(probability: float) -> str:
    """Write a probability in per cent; nothing that is measured is quite sure."""
    percent = round(100 * probability)
    return "over 99 %" if percent > 99 else "under 1 %" if percent < 1 else f"{percent} %"  # noqa: PLR2004


def _proof_sentence(one: Comparison) -> str:
    pair = f"batuta-{one.nominee} against {one.opponent}"
    if one.difference is None or one.verdict is Verdict.UNJUDGED:
        return f"Proof, {pair}: none; {one.questions} questions judge nothing."
    if one.verdict is Verdict.SAME:
        return f"Proof, {pair}: none; they did the same on {one.questions} questions kept back."
    gain = f"{100 * one.difference:+.1f} points"
    if one.low is not None and one.high is not None:
        gain += f" ({100 * one.low:+.1f} to {100 * one.high:+.1f})"
    found = f"{gain} on {one.questions} questions kept back"
    if one.p_corrected is not None:
        found += f", p = {one.p_corrected:.2g} after Holm"
    could = (
        ""
        if one.detectable is None
        else f"; so many questions show a gain from {100 * one.detectable:.1f} points on"
    )
    verdicts = {
        Verdict.BETTER: f"better: {found}",
        Verdict.WORSE: f"worse: {found}",
        Verdict.CHEAPER: f"not worse by more than 2 points, and cheaper: {found}",
        Verdict.UNDECIDED: f"none: {found}{could}",
    }
    return f"Proof, {pair}: {verdicts[one.verdict]}."


def _vote_sentence(result: TuneResult, ultra: str | None) -> list[str]:
    """Say so where asking the best single worker several times is expected to be worth most."""
    chosen = _find_gain(result, ultra).mean if ultra else 0.0
    return [
        (
            f"{name} of the best single worker is expected to be worth more than that: "
            f"{100 * gain.mean:+.1f} points, its calls counted. It is served as "
            "baseline/self-consistency."
        )
        for (name, _), gain in result.expected.items()
        if name.startswith(SELF_CONSISTENCY)
        and gain.probability >= SURE_ENOUGH
        and gain.mean > chosen
    ]
