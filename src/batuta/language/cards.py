"""A worker's card: the description of a worker in a conductor's prompt."""

from __future__ import annotations

from batuta.core import Price, Skill, Worker
from batuta.core.worker import FILE_SEARCH, PROGRAM, READER, SEARCH

_ABILITIES = {
    "tools": "call tools",
    "vision": "see pictures",
    "files": "read PDF files",
    "audio": "hear recordings",
    PROGRAM: "run Python code",
    SEARCH: "search the web",
    READER: "read web pages",
    FILE_SEARCH: "search files",
}
"""The abilities that tags of a worker stand for."""
MOST_SKILLS = 8
"""Maximum number of measured skills on a card, so that they do not fill the prompt."""


def worker_card(number: int, worker: Worker, *, descriptions: bool, prices: bool) -> str:
    """Return a line with the model and its description, then lines with skills and facts.

    Args:
        number: the worker's number in its pool.
        worker: the worker.
        descriptions: whether the worker is described; if not, only its number (and its price) is
            shown, as in the paper.
        prices: whether the price is shown, if it is known.
    """
    head = f"Model id {number}"
    price = _price_text(worker.price) if prices and worker.price else ""
    if not descriptions:
        return f"{head} ({price})" if price else head
    about = _one_line(worker.description)
    lines = [f"{head}: {_one_line(worker.model)}{'. ' + about if about else ''}"]
    measured = [skill for skill in worker.skills if not skill.board]
    if worker.strength is not None or measured:
        lines.append(f"right alone: {_measured_text(worker.strength, measured)}")
    if boards := [skill for skill in worker.skills if skill.board]:
        shown = "; ".join(f"{_share_text(skill)} ({skill.board})" for skill in boards)
        lines.append(f"on public boards, not measured here: {shown}")
    if facts := _worker_facts(worker, price):
        lines.append("; ".join(facts))
    return "\n  ".join(lines)


def worker_line(worker: Worker, *, prices: bool) -> str:
    """Return a one-line card under the worker's id, for a small model.

    Of the prices it has those of a call and of output.
    """
    about = _one_line(worker.description) or _one_line(worker.model)
    clauses = [about.rstrip(".")]
    measured = [skill for skill in worker.skills if not skill.board]
    if worker.strength is not None or measured:
        clauses.append(f"Right alone: {_measured_text(worker.strength, measured)}")
    if prices and worker.price and worker.price.call:
        clauses.append(f"${worker.price.call:f} a call")
    if prices and worker.price and worker.price.output:
        clauses.append(f"${worker.price.output:f} per million tokens")
    return f"{worker.id}: {'. '.join(clauses)}."


def _measured_text(strength: float | None, skills: list[Skill]) -> str:
    measured = [] if strength is None else [f"{strength:.0%} of all questions"]
    for skill in skills[:MOST_SKILLS]:
        of = f" of {skill.questions}" if skill.questions else ""
        measured.append(_share_text(skill) + of)
    return "; ".join(measured)


def _share_text(skill: Skill) -> str:
    return f"{_one_line(skill.family)} {skill.share:.0%}"


def _worker_facts(worker: Worker, price: str) -> list[str]:
    facts = [f"can {able}" for tag, able in _ABILITIES.items() if tag in worker.tags]
    if worker.context_window:
        facts.append(f"reads up to {worker.context_window:,} tokens")
    if price:
        facts.append(price)
    if worker.seconds is not None:
        facts.append(f"takes about {worker.seconds:.2g} s")
    return facts


def _price_text(price: Price) -> str:
    if price.call:
        return f"${price.call:f} a call"
    if not price.input and not price.output:
        return "costs nothing"
    return f"${price.input:f} in, ${price.output:f} out per million tokens"


def _one_line(text: str) -> str:
    """Return the text without line breaks, so that a card cannot imitate another worker's."""
    return " ".join(text.split())
