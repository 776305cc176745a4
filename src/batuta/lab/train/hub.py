"""The Hugging Face hub: finding models, also without a connection, and uploading the policy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import HfApi, get_token, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from huggingface_hub.utils import validate_repo_id

from batuta.errors import ConfigError, SourceError
from batuta.lab.train.settings import HubSettings

_HUB_SECONDS = 10.0
"""Timeout after which the hub counts as unreachable."""


def hub_problem(hub: HubSettings, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return a sentence that says why the policy cannot be uploaded; None if nothing is wrong."""
    if not hub.repo:
        return None
    try:
        validate_repo_id(hub.repo)
        named = hub.repo.count("/") == 1
    except HFValidationError:
        named = False
    if not named:
        return f"hub.repo = {hub.repo!r} is not the name of a model: write OWNER/NAME"
    if not (environ.get("HF_TOKEN") or get_token()):
        return f"hub.repo = {hub.repo} needs a token: set HF_TOKEN, or run `hf auth login`"
    return None


def require_hub(hub: HubSettings) -> None:
    """Check the repository's name and the token before the training begins.

    Raises:
        ConfigError: the name is invalid, or there is no token.
    """
    if problem := hub_problem(hub):
        raise ConfigError(problem)


def upload_policy(hub: HubSettings, policy: Path, environ: Mapping[str, str] = os.environ) -> str:
    """Upload the policy's folder with its card, and return the model's address.

    HF_ENDPOINT selects another hub than the public one.

    Raises:
        SourceError: the hub refused the upload or cannot be reached; the folder is not changed.
    """
    api = HfApi(endpoint=environ.get("HF_ENDPOINT") or None, token=environ.get("HF_TOKEN") or None)
    try:
        api.create_repo(hub.repo, private=hub.private, exist_ok=True)
        api.upload_folder(
            repo_id=hub.repo, folder_path=policy, commit_message="The policy after training"
        )
    except Exception as error:  # noqa: BLE001 - its HTTP library raises errors of its own
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise SourceError(
            f"{policy} is trained, but could not be uploaded to {hub.repo}: {reason}; try again "
            f"with `hf upload {hub.repo} {policy}`"
        ) from None
    return f"{api.endpoint}/{hub.repo}"


def find_reachable(
    start: str, revision: str | None, *, hub: HfApi | None = None, cache: Path | None = None
) -> tuple[str, str | None]:
    """Return the folder or hub id, and the revision, from which to load a model.

    Without a connection the libraries retry for half a minute for each file of a model, even if the
    file is cached. So the hub is called once, and if it cannot be reached, the model's folder in
    the cache is returned, with the revision None. A local folder is returned unchanged.

    If they are None, `revision` is the latest one, `hub` the one that the environment names, and
    `cache` the one that the libraries use.

    Raises:
        OSError: the hub cannot be reached and the cache does not have the model.
    """
    if Path(start).is_dir():
        return start, revision
    try:
        (hub or HfApi()).model_info(start, revision=revision, timeout=_HUB_SECONDS)
    except (HfHubHTTPError, HFValidationError):
        return start, revision  # loading the model reports the error
    except Exception:  # noqa: BLE001 - its HTTP library raises errors of its own
        try:
            return snapshot_download(
                start, revision=revision, cache_dir=cache, local_files_only=True
            ), None
        except LocalEntryNotFoundError:
            raise OSError("the hub cannot be reached") from None
    return start, revision
