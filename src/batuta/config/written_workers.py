"""Writes workers that were found here as settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from batuta.clients import WorkerSpec, find_provider
from batuta.config.pool_file import quote_text
from batuta.core.formatting import format_percent


def describe_workers(specs: Iterable[WorkerSpec], environ: Mapping[str, str]) -> str:
    """Return the `[[workers]]` of a settings file (TOML) with these workers.

    What is looked up by provider and model is left out, and so are keys: the variable with a
    server's own key is searched in the environment.
    """
    return "".join(_worker_text(spec, environ) for spec in specs)


def _worker_text(spec: WorkerSpec, environ: Mapping[str, str]) -> str:
    worker = spec.worker
    rows = {"id": worker.id, "provider": spec.provider, "model": worker.model}
    if spec.base_url:
        rows["base_url"] = spec.base_url
    if spec.key and (variable := _key_variable(spec, environ)):
        rows["key_env"] = variable
    if worker.description:
        rows["description"] = worker.description
    lines = [f"{name} = {quote_text(value)}" for name, value in rows.items()]
    own = [tag for tag in worker.tags if tag != "local"]
    if own:
        lines.append(f"tags = [{', '.join(map(quote_text, own))}]")
    if worker.context_window:
        lines.append(f"context_window = {worker.context_window}")
    lines += [
        f"# {skill.family}: {format_percent(skill.share)} ({skill.board})"
        for skill in worker.skills
    ]
    return "\n[[workers]]\n" + "\n".join(lines) + "\n"


def _key_variable(spec: WorkerSpec, environ: Mapping[str, str]) -> str | None:
    """Return the variable with the server's key; None if none has it or the provider names it."""
    if find_provider(spec.provider).key_vars:
        return None
    names = (name for name in environ if name.endswith("_API_KEY"))
    return next((name for name in names if environ[name].strip() == spec.key.reveal()), None)
