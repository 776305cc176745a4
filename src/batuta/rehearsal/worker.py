"""A worker of the rehearsal orchestra: a Client that reads its prompt and answers in words."""

from __future__ import annotations

import re
from typing import final

import anyio
import anyio.lowlevel

from batuta.core import Delta, Finish, Listener, Reply, Request, Usage
from batuta.core.conductor import SILENT
from batuta.core.usage import cost_of
from batuta.rehearsal.chance import roll
from batuta.rehearsal.grammar import read
from batuta.rehearsal.heard import Heard, Verb, hear, understand
from batuta.rehearsal.mind import Mind, Working
from batuta.rehearsal.problem import phrase, show
from batuta.rehearsal.profiles import Profile

OUTSIDE = (
    "This is the rehearsal orchestra, which works offline and can only answer its own kinds of "
    "questions (arithmetic in steps, programs on lists, chains of facts from the chronicle of "
    "Veldra, edits of a text, dates and units); to ask real models, set OPENAI_API_KEY, "
    "ANTHROPIC_API_KEY or another provider's key, or write a batuta.toml, and run "
    "`batuta pool list`."
)
"""All that is said to a question from outside this world."""

_GUESSED = "I had to guess a fact."
_CHARS_PER_TOKEN = 4
_FRAGMENT = re.compile(r"\S*\s*\S*\s*\S*\s*|\S+")


@final
class RehearsalClient:
    """One worker; a program that computes, slips and writes down what it did."""

    def __init__(self, profile: Profile, seed: int = 0, time_scale: float = 1.0) -> None:
        """Learns its part.

        Args:
            profile: what the worker is good at.
            seed: of its lapses, where a request brings none.
            time_scale: 1 sleeps about a tenth of a second a reply, 0 not at all.
        """
        self._profile = profile
        self._seed = seed
        self._time_scale = time_scale

    def __repr__(self) -> str:
        return f"RehearsalClient({self._profile.name!r})"

    async def complete(self, request: Request, listener: Listener = SILENT) -> Reply:
        """The reply; it depends on the request's text and seed and on nothing else."""
        reply = self.reply(request)
        pause = self._time_scale * self._profile.pace * (0.5 + reply.usage.total / 1000)
        if not listener.streaming:
            await _rest(pause)
            return reply
        fragments = split(reply.text)
        for fragment in fragments:
            await _rest(pause / len(fragments))
            await listener.spoke(Delta(fragment))
        return reply

    def reply(self, request: Request) -> Reply:
        """The same without time passing."""
        heard = hear(request)
        problem = read(heard.question)
        if problem is None:
            text, finish = OUTSIDE, Finish.DECLINED
        else:
            seed = self._seed if request.sampling.seed is None else request.sampling.seed
            text, finish = speak(Mind(self._profile, problem, heard, seed)), Finish.STOP
        caps = (request.sampling.max_tokens, request.max_output)
        most = min((cap for cap in caps if cap is not None), default=None)
        if most is not None and tokens(text) > most:
            text, finish = text[: most * _CHARS_PER_TOKEN], Finish.LENGTH
        prompt = sum(tokens(message.text) for message in request.messages)
        usage = Usage(calls=1, input=prompt, output=tokens(text))
        cost = cost_of(usage, self._profile.price)
        return Reply(text, usage=usage, cost=cost, finish=finish, model=model_name(self._profile))


def model_name(profile: Profile) -> str:
    """The model behind a worker, as it names itself."""
    return f"rehearsal/{profile.name}"


def tokens(text: str) -> int:
    """Tokens of a text, at four characters each."""
    return -(-len(text) // _CHARS_PER_TOKEN)


def split(text: str) -> list[str]:
    """The text in fragments of about three words."""
    return [fragment for fragment in _FRAGMENT.findall(text) if fragment]


async def _rest(seconds: float) -> None:
    if seconds > 0:
        await anyio.sleep(seconds)
    else:
        await anyio.lowlevel.checkpoint()


def speak(mind: Mind) -> str:
    """The reply of a worker to a question of its world."""
    heard, profile = mind.heard, mind.profile
    verb = Verb.SOLVE if heard.instruction is None else understand(heard.instruction)
    missed = profile.refuses.get(verb, 0.0) if verb is not Verb.UNKNOWN else 0.7
    if missed and roll("understands", profile.name, verb, heard.question) < missed:
        if not profile.helpful or verb is Verb.UNKNOWN:
            return "I do not understand what I am asked to do here, so I leave it to others."
        verb = Verb.SOLVE
    return _VOICES.get(verb, _solution)(mind)


def _plan(mind: Mind) -> str:
    steps = "\n".join(f"{n}. {phrase(op)}" for n, op in enumerate(mind.plan(), 1))
    return f"{mind.profile.opening} The plan, from {show(mind.problem.start)}:\n{steps}"


def _facts(mind: Mind) -> str:
    found = mind.look_up()
    if not found:
        return "I know no facts that help with this."
    return "What I know of it:\n" + "\n".join(f"- {r} of {s}: {o}" for r, s, o in found)


def _solution(mind: Mind) -> str:
    work = mind.work(Verb.SOLVE)
    guessed = any(line.guess for line in work.lines)
    return f"{_GUESSED if guessed else mind.profile.opening}\n{_written(work)}"


def _check(mind: Mind) -> str:
    if not _has_working(mind.heard):
        return "There is no solution here that I could check."
    work = mind.work(Verb.VERIFY)
    if work.corrected or work.value is None:
        return f"Verdict: wrong; this is how I find it.\n{_written(work)}"
    return f"Verdict: correct, all {len(work.lines)} steps hold.\nAnswer: {show(work.value)}"


def _repair(mind: Mind) -> str:
    if not _has_working(mind.heard):
        return "There is no solution here that I could repair."
    return f"I went over the working once more.\n{_written(mind.work(Verb.REPAIR))}"


def _decision(mind: Mind) -> str:
    if not _has_working(mind.heard):
        return "There is nothing here to compare."
    return f"I laid the solutions side by side.\n{_written(mind.work(Verb.COMPARE))}"


def _form(mind: Mind) -> str:
    answers = [sheet.answer for sheet in mind.heard.sheets if sheet.answer is not None]
    return f"Answer: {answers[-1]}" if answers else _solution(mind)


_VOICES = {
    Verb.PLAN: _plan,
    Verb.LOOK_UP: _facts,
    Verb.VERIFY: _check,
    Verb.REPAIR: _repair,
    Verb.COMPARE: _decision,
    Verb.FORMAT: _form,
}


def _has_working(heard: Heard) -> bool:
    return any(sheet.steps or sheet.answer for sheet in heard.sheets)


def _written(work: Working) -> str:
    lines = [
        f"Step {n}, {line.what}: {line.before} -> {line.after}{' (a guess)' if line.guess else ''}"
        for n, line in enumerate(work.lines, 1)
    ]
    if work.value is None:
        return "\n".join([*lines, "I cannot go on from here."])
    return "\n".join([*lines, f"Answer: {show(work.value)}"])
