"""Pull local models from the command line, after showing their sizes and licences."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import anyio
import typer

from batuta.cli.progress import open_progress_bars
from batuta.core.formatting import format_bytes
from batuta.errors import ConfigError
from batuta.local.catalogue import MODELS, KnownModel, cached_models, choose_known, pulled_file
from batuta.local.downloads import Downloader
from batuta.local.pull import pull_model
from batuta.rendering.terminal import write_error


def offer_models(pool: str, *, yes: bool) -> None:
    """Pull the models of the pool `local` or `local:NAME,NAME`, after asking unless `yes`.

    If none is named, all are pulled, or nothing if the cache has one already.

    Raises:
        ConfigError: a name is unknown, the user declines, or stdin is not a terminal and `yes` is
            not set.
        DownloadError: a model cannot be downloaded.
    """
    named = pool.partition(":")[2]
    names = [name.strip() for name in named.split(",") if name.strip()]
    if not names and cached_models(os.environ):
        return
    missing = [m for m in choose_known(names or MODELS) if pulled_file(m) is None]
    if missing:
        confirm_pull(missing, yes)
        anyio.run(pull_missing, missing)


def confirm_pull(models: Sequence[KnownModel], yes: bool) -> None:
    """Show the models' sizes and licences, and ask for consent unless `yes`.

    Raises:
        ConfigError: the user declines, or stdin is not a terminal and `yes` is not set.
    """
    for model in models:
        write_error(
            f"{model.name}: {model.title}, {format_bytes(model.size)}, licence {model.licence}, "
            f"from {model.repository}\n"
        )
    if yes:
        return
    total = format_bytes(sum(model.size for model in models))
    if not sys.stdin.isatty():
        names = " ".join(model.name for model in models)
        raise ConfigError(
            f"these models ({total}) are not pulled yet; run: batuta local pull {names}"
        )
    if not typer.confirm(f"Pull {total}?", default=True, err=True):
        raise ConfigError("nothing was pulled")


async def pull_missing(models: Sequence[KnownModel]) -> None:
    """Pull the models with a progress bar for each.

    Raises:
        DownloadError: a model cannot be downloaded.
    """
    with open_progress_bars(in_bytes=True) as bars:
        async with Downloader(os.environ) as downloader:
            for model in models:
                bar = bars.add_task(model.name, total=model.size, status="")
                await pull_model(
                    model,
                    downloader=downloader,
                    on_bytes=lambda received, bar=bar: bars.update(bar, completed=received),
                )
