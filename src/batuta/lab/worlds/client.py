"""A simulated worker of the rehearsal: a Client that parses its prompt and writes a reply."""

from __future__ import annotations

import re
from typing import final

import anyio
import anyio.lowlevel

from batuta.core import CallListener, Delta, Finish, Price, Reply, Request, Usage
from batuta.core.conductor import NULL_LISTENER
from batuta.lab.worlds.grammar import read_problem
from batuta.lab.worlds.problem import format_value, phrase_step
from batuta.lab.worlds.profiles import WorkerProfile
from batuta.lab.worlds.prompt_parser import ParsedPrompt, parse_prompt
from batuta.lab.worlds.seeded_random import uniform_number
from batuta.lab.worlds.worker_model import WorkedSolution, WorkerModel
from batuta.language.instructions import InstructionKind, classify_instruction
from batuta.usage import usage_cost

OUT_OF_SCOPE_REPLY = (
    "This is the rehearsal orchestra, which works offline and can only answer its own kinds of "
    "questions (arithmetic in steps, programs on lists, chains of facts from the chronicle of "
    "Veldra, edits of a text, dates and units); to ask real models, set OPENAI_API_KEY, "
    "ANTHROPIC_API_KEY or another provider's key, or write a batuta.toml, and run "
    "`batuta pool list`."
)
"""The whole reply to a question that is not of this world."""

_GUESS_NOTICE = "I had to guess a fact."
_CHARS_PER_TOKEN = 4
_FRAGMENT = re.compile(r"\S*\s*\S*\s*\S*\s*|\S+")


@final
class RehearsalClient:
    """A worker: a program that computes, makes errors and writes down its steps."""

    def __init__(self, profile: WorkerProfile, time_scale: float = 1.0) -> None:
        """Create the worker of that profile.

        `time_scale` is the factor of the delay of each reply; 0: no delay.
        """
        self._profile = profile
        self._time_scale = time_scale

    def __repr__(self) -> str:
        return f"RehearsalClient({self._profile.name!r})"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the reply, which depends only on the request's text, seed and token limits."""
        reply = self.reply(request)
        pause = self._time_scale * self._profile.pace * (0.5 + reply.usage.total / 1000)
        if not listener.streaming:
            await sleep_for(pause)
            return reply
        fragments = split_fragments(reply.text)
        for fragment in fragments:
            await sleep_for(pause / len(fragments))
            await listener.on_delta(Delta(text=fragment))
        return reply

    def reply(self, request: Request) -> Reply:
        """Return the reply without sleeping."""
        parsed = parse_prompt(request)
        problem = read_problem(parsed.question)
        if problem is None:
            text, finish = OUT_OF_SCOPE_REPLY, Finish.DECLINED
        else:
            seed = request.sampling.seed or 0
            text = write_reply(WorkerModel(self._profile, problem, parsed, seed))
            finish = Finish.STOP
        caps = (request.sampling.max_tokens, request.max_output)
        most = min((cap for cap in caps if cap is not None), default=None)
        if most is not None and count_tokens(text) > most:
            text, finish = text[: most * _CHARS_PER_TOKEN], Finish.LENGTH
        name = model_name(self._profile)
        return make_reply(request, text, finish, price=self._profile.price, model=name)


def make_reply(request: Request, text: str, finish: Finish, *, price: Price, model: str) -> Reply:
    """Return a simulated worker's reply with its usage and cost."""
    prompt = sum(count_tokens(message.text) for message in request.messages)
    usage = Usage(calls=1, input=prompt, output=count_tokens(text))
    return Reply(text=text, usage=usage, cost=usage_cost(usage, price), finish=finish, model=model)


def model_name(profile: WorkerProfile) -> str:
    """Return the name that the worker's replies report as their model."""
    return f"rehearsal/{profile.name}"


def count_tokens(text: str) -> int:
    """Return the number of tokens of a text, at four characters each."""
    return -(-len(text) // _CHARS_PER_TOKEN)


def split_fragments(text: str) -> list[str]:
    """Return the text in fragments of about three words."""
    return [fragment for fragment in _FRAGMENT.findall(text) if fragment]


async def sleep_for(seconds: float) -> None:
    """Sleep; at 0 seconds, only let other tasks run."""
    if seconds > 0:
        await anyio.sleep(seconds)
    else:
        await anyio.lowlevel.checkpoint()


def write_reply(worker: WorkerModel) -> str:
    """Return the reply of a worker to a question of its world."""
    prompt, profile = worker.prompt, worker.profile
    verb = (
        InstructionKind.SOLVE
        if prompt.instruction is None
        else classify_instruction(prompt.instruction)
    )
    unclear = profile.refuses.get(verb, 0.0) if verb is not InstructionKind.UNKNOWN else 0.7
    if unclear and uniform_number("understands", profile.name, verb, prompt.question) < unclear:
        if not profile.helpful or verb is InstructionKind.UNKNOWN:
            return "I do not understand what I am asked to do here, so I leave it to others."
        verb = InstructionKind.SOLVE
    return _REPLY_WRITERS.get(verb, _write_solution)(worker)


def _write_plan(worker: WorkerModel) -> str:
    steps = "\n".join(f"{n}. {phrase_step(op)}" for n, op in enumerate(worker.make_plan(), 1))
    return f"{worker.profile.opening} The plan, from {format_value(worker.problem.start)}:\n{steps}"


def _write_facts(worker: WorkerModel) -> str:
    found = worker.look_up()
    if not found:
        return "I know no facts that help with this."
    return "What I know of it:\n" + "\n".join(f"- {r} of {s}: {o}" for r, s, o in found)


def _write_solution(worker: WorkerModel) -> str:
    work = worker.solve_in_mode(InstructionKind.SOLVE)
    guessed = any(line.guess for line in work.lines)
    return f"{_GUESS_NOTICE if guessed else worker.profile.opening}\n{format_solution(work)}"


def _write_check(worker: WorkerModel) -> str:
    if not _has_working(worker.prompt):
        return "There is no solution here that I could check."
    work = worker.solve_in_mode(InstructionKind.VERIFY)
    if work.corrected_steps or work.value is None:
        return f"Verdict: wrong; this is how I find it.\n{format_solution(work)}"
    return (
        f"Verdict: correct, all {len(work.lines)} steps hold.\nAnswer: {format_value(work.value)}"
    )


def _write_repair(worker: WorkerModel) -> str:
    if not _has_working(worker.prompt):
        return "There is no solution here that I could repair."
    solution = format_solution(worker.solve_in_mode(InstructionKind.REPAIR))
    return f"I went over the working once more.\n{solution}"


def _write_decision(worker: WorkerModel) -> str:
    if not _has_working(worker.prompt):
        return "There is nothing here to compare."
    solution = format_solution(worker.solve_in_mode(InstructionKind.COMPARE))
    return f"I laid the solutions side by side.\n{solution}"


def _write_final_answer(worker: WorkerModel) -> str:
    answers = [reply.answer for reply in worker.prompt.replies if reply.answer is not None]
    return f"Answer: {answers[-1]}" if answers else _write_solution(worker)


_REPLY_WRITERS = {
    InstructionKind.PLAN: _write_plan,
    InstructionKind.LOOK_UP: _write_facts,
    InstructionKind.VERIFY: _write_check,
    InstructionKind.REPAIR: _write_repair,
    InstructionKind.COMPARE: _write_decision,
    InstructionKind.FORMAT: _write_final_answer,
}


def _has_working(prompt: ParsedPrompt) -> bool:
    return any(reply.steps or reply.answer for reply in prompt.replies)


def format_solution(work: WorkedSolution) -> str:
    """Return a solution as text: a line for each step, and the answer."""
    lines = [
        f"Step {n}, {line.what}: {line.before} -> {line.after}{' (a guess)' if line.guess else ''}"
        for n, line in enumerate(work.lines, 1)
    ]
    if work.value is None:
        return "\n".join([*lines, "I cannot go on from here."])
    return "\n".join([*lines, f"Answer: {format_value(work.value)}"])
