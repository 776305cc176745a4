"""The admin's changes to the pool: add, test, price, describe or switch off workers, and undo."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, final
from urllib.parse import quote, urlsplit

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response

from batuta.clients.factory import check_worker
from batuta.config.pool_file import add_worker, change_worker, find_worker
from batuta.core import WorkerId
from batuta.core.formatting import format_cost, format_seconds
from batuta.errors import BatutaError
from batuta.gateway.errors import APIError, invalid_value, not_found
from batuta.gateway.serving.models import Catalogue
from batuta.gateway.serving.pool_editor import PoolEditor
from batuta.gateway.ui.rendering import redirect_to
from batuta.gateway.ui.session import WebSession, read_form
from batuta.store import Store
from batuta.store.audit import AuditEntry
from batuta.usage import usage_cost

_POOL_PATH = "/ui/pool"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,79}")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{1,79}")
_MOST_TESTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTest:
    """The result of a test call to a worker."""

    at: float
    """Time of the test, in seconds since the epoch."""
    answers: bool
    text: str
    """The result in words."""


@final
class PoolForms:
    """Handles the forms of the pool screen, for the admin only."""

    def __init__(
        self, catalogue: Catalogue, store: Store | None, editor: PoolEditor | None
    ) -> None:
        self._catalogue = catalogue
        self._store = store
        self._editor = editor
        self.tests: dict[str, WorkerTest] = {}
        """The latest test of each worker by this process; after `_MOST_TESTS` all are dropped."""

    async def describe(self, session: WebSession) -> dict[str, Any] | None:
        """Return the values of the screen's forms; None if the visitor is not the admin."""
        if not session.is_admin:
            return None
        state: dict[str, Any] = {"path": "", "workers": {}, "off": [], "history": [], "problem": ""}
        if self._editor is None:
            return state
        file = self._editor.file
        try:
            workers = await run_sync(file.workers)
            history = await run_sync(file.history)
        except BatutaError as error:
            return {**state, "problem": str(error)}
        return {
            **state,
            "path": str(file.path),
            "workers": {str(each.get("id")): each for each in workers},
            "off": [each for each in workers if each.get("enabled") is False],
            "history": history[:10],
        }

    async def add(self, request: Request, session: WebSession) -> Response:
        """Add a worker to the settings file and serve it.

        Raises:
            APIError: the visitor is not the admin, a field is invalid, or the file cannot be
                changed.
        """
        form = await self._form(request, session)
        values = parse_new_worker(form)
        worker: str = values["id"]
        return await self._change(session, partial(add_worker, values=values), worker, "added")

    async def change(self, request: Request, session: WebSession) -> Response:
        """Test, describe or price a worker, or switch it on or off.

        Raises:
            APIError: the visitor is not the admin, the worker does not exist, a field is invalid,
                or the file cannot be changed.
        """
        form = await self._form(request, session)
        worker: str = request.path_params["id"]
        switch = partial(change_worker, worker=worker)
        match request.path_params["what"]:
            case "test":
                return await self._test(worker, session)
            case "card":
                edit = partial(change_card, worker=worker, card=parse_card(form))
                what = "card changed"
            case "off":
                edit, what = partial(switch, values={"enabled": False}), "switched off"
            case "on":
                edit, what = partial(switch, values={"enabled": None}), "switched on"
            case _:
                raise not_found(f"The screen {request.url.path[:80]}")
        return await self._change(session, edit, worker, what)

    async def undo(self, request: Request, session: WebSession) -> Response:
        """Undo the latest change.

        Raises:
            APIError: the visitor is not the admin, or the change cannot be undone.
        """
        await self._form(request, session)
        try:
            await self._require_editor().undo(by=session.caller.actor)
        except BatutaError as error:
            raise _refuse_change(error) from None
        return redirect_to(_POOL_PATH)

    async def _change(self, session: WebSession, edit: Any, worker: str, what: str) -> Response:
        editor = self._require_editor()
        try:
            await editor.change(
                edit, worker=worker, what=f"{worker}: {what}", by=session.caller.actor
            )
        except BatutaError as error:
            raise _refuse_change(error) from None
        return _show_worker(worker)

    async def _test(self, name: str, session: WebSession) -> Response:
        worker = self._catalogue.pool[WorkerId(name)] if name in self._catalogue.pool else None
        if worker is None:
            raise not_found(f"The worker '{name[:80]}'")
        found = await check_worker(self._catalogue.clients[worker.id], worker)
        cost = format_cost(usage_cost(found.usage, worker.price))
        took = f"{format_seconds(found.seconds)}, {found.usage.total} tokens, {cost}"
        outcome = f"answered in {took}" if found.error is None else f"{found.error} ({took})"
        if len(self.tests) >= _MOST_TESTS:
            self.tests.clear()
        self.tests[name] = WorkerTest(at=time.time(), answers=found.error is None, text=outcome)
        if self._store is not None:
            entry = AuditEntry(
                actor=session.caller.actor,
                action="pool.tested",
                subject=name,
                details={"cost": cost, "answers": found.error is None},
            )
            await self._store.audit.append(entry)
        return _show_worker(name)

    async def _form(self, request: Request, session: WebSession) -> dict[str, str]:
        if not session.is_admin:
            raise not_found(f"The screen {request.url.path[:80]}")
        return await read_form(request, session)

    def _require_editor(self) -> PoolEditor:
        if self._editor is None:
            message = "The pool has no settings file: write a batuta.toml to change it here."
            raise APIError(409, "conflict", message)
        return self._editor


def _show_worker(worker: str) -> Response:
    """Redirect to the screen, with the worker's entry unfolded."""
    return redirect_to(f"{_POOL_PATH}?worker={quote(worker, safe='')}#change")


def _refuse_change(error: BatutaError) -> APIError:
    return APIError(409, "conflict", f"{error}."[:600])


def parse_new_worker(form: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of the new worker in the form, without empty ones.

    Raises:
        APIError: a field is invalid, or seems to contain an API key.
    """
    text = {name: form.get(name, "").strip() for name in ("id", "model", "provider", "base_url")}
    if not _ID.fullmatch(text["id"]):
        raise invalid_value("id", "it must consist of letters, digits and . _ : / -.")
    if not text["model"]:
        raise invalid_value("model", "a worker needs a model.")
    if text["base_url"]:
        address = urlsplit(text["base_url"])
        if address.username or address.password or address.query:
            raise invalid_value(
                "base_url", "it must not contain a key; name the key's environment variable."
            )
    values: dict[str, Any] = {name: value for name, value in text.items() if value}
    variable = form.get("key_env", "").strip()
    if variable:
        if not _VARIABLE.fullmatch(variable):
            reason = "it must be the name of an environment variable such as MY_KEY, not the key."
            raise invalid_value("key_env", reason)
        values["key_env"] = variable
    card = {name: value for name, value in parse_card(form).items() if value is not None}
    return {**values, **card}


def parse_card(form: Mapping[str, str]) -> dict[str, Any]:
    """Return a worker's description, tags and price in the form; None for an empty field.

    Raises:
        APIError: a field is invalid.
    """
    description = form.get("description", "").replace("\r", "").strip()
    tags = [*dict.fromkeys(form.get("tags", "").replace(",", " ").split())]
    amounts = [_parse_price(name, form.get(name, "")) for name in ("input", "output")]
    if (amounts[0] is None) != (amounts[1] is None):
        raise invalid_value("price", "give both parts: input and output.")
    price = None
    if amounts[0] is not None:
        price = dict(zip(("input", "output"), amounts, strict=True))
    return {"description": description[:2000] or None, "tags": tags or None, "price": price}


def change_card(text: str, *, worker: str, card: Mapping[str, Any]) -> str:
    """Return the text of the settings with the worker's card changed to that of a form.

    Values that were not changed in the form stay as they are in the file, and so do the parts of a
    price that the form lacks.

    Raises:
        ConfigError: as for `change_worker`.
    """
    known = find_worker(text, worker)
    price: Mapping[str, Any] = known.get("price") or {}
    shown = parse_card(
        {
            "description": known.get("description", ""),
            "tags": " ".join(known.get("tags", ())),
            **{name: str(price.get(name, "")) for name in ("input", "output")},
        }
    )
    values = {name: value for name, value in card.items() if value != shown[name]}
    if values.get("price"):
        values["price"] = {**price, **values["price"]}
    return change_worker(text, worker, values)


def _parse_price(name: str, text: str) -> int | float | None:
    if not text.strip():
        return None
    try:
        amount = Decimal(text.strip())
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or not 0 <= amount < 1_000_000:  # noqa: PLR2004 - dollars
        raise invalid_value(name, "it must be dollars per million tokens, such as 2.50.")
    return int(amount) if amount == amount.to_integral_value() else float(amount)
