"""Recommends the systems with the greatest expected gain, if a gain is likely. Pure.

A corrected test decides whether a gain is proven. The proof is reported separately, and affects the
recommendation only if the settings demand proven systems.
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
"""Names of the folders, beside the report, of the selectors of workflows and of single workers."""
PROVEN = frozenset({Verdict.BETTER, Verdict.CHEAPER})
"""The verdicts that prove a system."""


def recommend_systems(result: TuneResult, *, only_proven: bool = False) -> Json:
    """Choose the systems that answer as mini and ultra, and return them with the reasons as JSON.

    With `only_proven` a system must be proven better than its opponent (the best single worker or
    its self-consistency), or cheaper and at most two points worse. None as a system stands for the
    best single worker.
    """
    best = result.pool.ranked()[0].id
    if not result.comparisons:
        why = "Nothing was judged, so nothing is recommended beyond the best single worker."
        return {ULTRA: None, MINI: None, "best": best, "expected": {}, "why": [why]}
    ultra = _choose_system(result, (ULTRA, MINI), only_proven=only_proven)
    mini = _choose_system(result, (MINI,), only_proven=only_proven)
    pattern = result.pattern
    folders = {ULTRA: pattern.name if pattern else SELECTOR, MINI: SINGLES_SELECTOR}
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
            f"{one} over {other}": found.as_json()
            for (one, other), found in result.expected.items()
        },
        "why": [*reasons, *_vote_sentence(result, ultra)],
    }


def _choose_system(result: TuneResult, systems: Iterable[str], *, only_proven: bool) -> str | None:
    """Return the nominee with the greatest expected gain; None if none is likely or proven enough.

    If the gains of ultra and mini are both likely, their comparison with each other decides.
    """
    against_best = [one for one in result.comparisons if one.opponent != MINI]
    proven = {one.nominee for one in against_best if one.verdict in PROVEN}
    likely = [
        name
        for name in systems
        if _find_gain(result, name).probability >= SURE_ENOUGH
        and (name in proven or not only_proven)
    ]
    if len(likely) > 1 and (between := result.expected.get((likely[0], likely[1]))) is not None:
        return likely[0] if between.mean >= 0 else likely[1]
    return max(likely, key=lambda name: _find_gain(result, name).mean, default=None)


def _find_gain(result: TuneResult, name: str) -> ExpectedGain:
    return result.expected[name, BEST_SINGLE]


def _recommendation_reason(
    result: TuneResult, served: str, chosen: str | None, best: WorkerId, *, only_proven: bool
) -> str:
    gain = _find_gain(result, chosen or served)
    worth = (
        f"expected to gain {100 * gain.mean:+.1f} points over the best single worker, {best}, net "
        f"of the price of its calls; probability of a gain {format_probability(gain.probability)}, "
        f"from {gain.questions} questions"
    )
    pattern = result.pattern if (chosen or served) == ULTRA else None
    other = (
        f"batuta-{served}: the best single worker, {best}; {pattern or 'the selector'} is {worth}"
    )
    if chosen is not None:
        kinds = {ULTRA: "the selector of workflows", MINI: "the selector of single workers"}
        return f"batuta-{served}: {pattern or kinds[chosen]}; {worth}."
    if gain.probability >= SURE_ENOUGH and only_proven:
        return f"{other}. It is not proven, and --only-proven demands a proof."
    if not gain.questions or gain.mean == 0:
        return f"batuta-{served}: the best single worker, {best}; the search found nothing better."
    return f"{other}. A recommendation needs a probability of {100 * SURE_ENOUGH:.0f} %."


def format_probability(probability: float) -> str:
    """Return a probability in per cent, which is never stated as 0 or 100 %."""
    percent = round(100 * probability)
    return "over 99 %" if percent > 99 else "under 1 %" if percent < 1 else f"{percent} %"  # noqa: PLR2004


def _proof_sentence(one: Comparison) -> str:
    pair = f"batuta-{one.nominee} against {one.opponent}"
    if one.difference is None or one.verdict is Verdict.UNJUDGED:
        return f"Proof, {pair}: none; {one.questions} questions are too few."
    if one.verdict is Verdict.SAME:
        return f"Proof, {pair}: none; their scores on {one.questions} held-out questions are equal."
    gain = f"{100 * one.difference:+.1f} points"
    if one.low is not None and one.high is not None:
        gain += f" ({100 * one.low:+.1f} to {100 * one.high:+.1f})"
    found = f"{gain} on {one.questions} held-out questions"
    if one.p_corrected is not None:
        found += f", p = {one.p_corrected:.2g} (Holm-corrected)"
    could = (
        ""
        if one.detectable is None
        else f"; {one.questions} questions can prove a gain of {100 * one.detectable:.1f} points"
    )
    verdicts = {
        Verdict.BETTER: f"better: {found}",
        Verdict.WORSE: f"worse: {found}",
        Verdict.CHEAPER: f"not worse by more than 2 points, and cheaper: {found}",
        Verdict.UNDECIDED: f"none: {found}{could}",
    }
    return f"Proof, {pair}: {verdicts[one.verdict]}."


def _vote_sentence(result: TuneResult, ultra: str | None) -> list[str]:
    """Return a sentence if self-consistency of the best worker is expected to gain the most."""
    chosen = _find_gain(result, ultra).mean if ultra else 0.0
    return [
        (
            f"{name} of the best single worker is expected to gain more: {100 * gain.mean:+.1f} "
            "points, net of the price of its calls. It is served as baseline/self-consistency."
        )
        for (name, _), gain in result.expected.items()
        if name.startswith(SELF_CONSISTENCY)
        and gain.probability >= SURE_ENOUGH
        and gain.mean > chosen
    ]
