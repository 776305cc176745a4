"""Every error Batuta raises, named by the boundary it crossed.

    BatutaError
    ├── WorkflowError              text that is not a workflow                (language)
    ├── ConfigError                a setting, a pool file, a missing key      (config, plugins)
    ├── LimitReachedError          the run's own limit forbids another call   (engine)
    ├── StoreError                 the disk or the database                   (store)
    ├── SandboxError               no sandbox can be built here               (sandbox)
    ├── ExecutorError              the machines that were to run it are lost  (lab.executor)
    ├── WorkerLostError            a worker that answered does not any more    (lab.tune)
    ├── SourceError                a benchmark's or a record's file           (lab.tasks)
    ├── DownloadError              a model's file that cannot be fetched      (local)
    └── ClientError                a model's API                              (clients)
        ├── ProviderUnreachableError   no connection                          tried again
        ├── ProviderTimeoutError       connected, then silence                tried again if short
        ├── RateLimitError             429                                    after `retry_after`
        ├── ProviderOverloadedError    5xx                                    tried again
        ├── StreamInterruptedError     a stream cut in the middle             tried again
        ├── InvalidReplyError          not the dialect: content type, JSON    tried again
        ├── ProviderAuthError          401, 403                               another worker
        ├── ModelNotFoundError         404, a redirect                        another worker
        ├── ContextLengthError         the prompt does not fit                another worker
        ├── InsufficientCreditError    402, an exhausted quota                another worker
        ├── CircuitOpenError           failed too often, skipped for a while  another worker
        ├── NotRecordedError           the record has no such answer          another worker
        └── BadRequestError            any other 4xx                          another worker
            ├── FormRefusedError       a form that it cannot hold a model to   asked in another form
            └── UnsupportedFieldError  a field that the provider does not take

A bad run is data: the engine turns a `ClientError` into a `Failure` and goes on.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import ClassVar

from batuta.usage import Cost, Usage


class BatutaError(Exception):
    """The root; `str(error)` is one sentence that says what happened and what to do."""


class WorkflowError(BatutaError):
    """A text that is not a workflow; the sentence names the first thing that is wrong."""


class ConfigError(BatutaError):
    """A setting that cannot be used; the sentence names it and its file or variable."""


class LimitReachedError(BatutaError):
    """The run's limit forbids another call."""

    def __init__(self, limit: str, spent: str, allowed: str) -> None:
        super().__init__(f"the limit on {limit} was reached: {spent} of {allowed}")
        self.limit = limit
        """`steps`, `rounds`, `tokens`, `usd` or `seconds`."""
        self._told = (limit, spent, allowed)

    def __reduce__(self) -> tuple[type[LimitReachedError], tuple[str, str, str]]:
        return type(self), self._told


class StoreError(BatutaError):
    """The store, or a file of a report or a run, could not be opened, read or written."""


class ExecutorError(BatutaError):
    """The processes or machines that were to execute runs are lost."""


class WorkerLostError(BatutaError):
    """A worker that has answered does not any more; what is measured then says nothing."""


class SourceError(BatutaError):
    """A benchmark's or a record's file that is missing, broken or cannot be fetched."""


class DownloadError(BatutaError):
    """A model's file that cannot be fetched, written, or is not what it should be."""


class SandboxError(BatutaError):
    """No sandbox can be built on this machine; the sentence gives the cause and a remedy."""


class ClientError(BatutaError):
    """A call to a model that gave no usable reply."""

    retryable: ClassVar[bool] = False
    code: ClassVar[str] = "client_error"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        usage: Usage | None = None,
        cost: Cost | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status, if an answer came at all."""
        self.retry_after = retry_after
        """Seconds the provider asked us to wait."""
        self.usage = usage
        """Tokens that the broken call consumed, as far as they are known."""
        self.host = ""
        """Host and port that were called, and where they redirect to, for the operator; the
        sentence never names them."""
        self.cost = cost
        """Dollars that the broken call cost, as far as they are known."""
        self.words = ""
        """The provider's message when it refused the whole request, for callers that may send it in
        another form; never shown."""


class ProviderUnreachableError(ClientError):
    """No connection could be made."""

    retryable = True
    code = "unreachable"


class ProviderTimeoutError(ClientError):
    """Connected, then nothing came for too long."""

    retryable = True
    code = "timed_out"


class RateLimitError(ClientError):
    """The provider asks for patience (429)."""

    retryable = True
    code = "rate_limited"


class ProviderOverloadedError(ClientError):
    """The provider failed on its side (5xx)."""

    retryable = True
    code = "overloaded"


class StreamInterruptedError(ClientError):
    """A stream that ended before its end was announced."""

    retryable = True
    code = "interrupted"


class InvalidReplyError(ClientError):
    """A 200 that is not in the dialect: wrong content type, malformed JSON, no choices."""

    retryable = True
    code = "bad_reply"


class ProviderAuthError(ClientError):
    """The key is missing, wrong or not allowed (401, 403)."""

    code = "unauthorised"


class ModelNotFoundError(ClientError):
    """The provider does not have this model (404), or no such API at this address (a redirect)."""

    code = "model_missing"


class ContextLengthError(ClientError):
    """The prompt does not fit in the model's context window."""

    code = "context_too_long"


class InsufficientCreditError(ClientError):
    """The account is empty (402) or its quota is used up."""

    code = "out_of_credit"


class CircuitOpenError(ClientError):
    """The provider failed too often and is skipped for a while; nothing was sent."""

    code = "circuit_open"


class NotRecordedError(ClientError):
    """A recorded worker was asked for what its record cannot know."""

    code = "not_recorded"


class BadRequestError(ClientError):
    """The provider refused the request (any other 4xx)."""

    code = "bad_request"


class FormRefusedError(BadRequestError):
    """The provider cannot hold a model to the form that was asked for, and words do not suffice."""


class UnsupportedFieldError(BadRequestError):
    """The worker cannot honour a field of the request, which the message names."""

    code = "unsupported_field"


@contextmanager
def report_unwritable(what: object) -> Generator[None]:
    """Raise StoreError if the block cannot write that file or folder."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{what} cannot be written: {error.strerror}") from None
