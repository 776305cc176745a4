"""Batuta's errors, with the main packages that raise them, or what usually follows a failed call.

    BatutaError
    ├── WorkflowError              text is not a workflow                     (language)
    ├── ConfigError                a setting, a pool file, a missing key      (most packages)
    ├── LimitReachedError          a limit forbids another call      (engine, gateway, lab.tune)
    ├── StoreError                 the disk or the database                   (store)
    ├── SandboxError               no sandbox can be built here               (sandbox)
    ├── ExecutorError              other processes fail or are lost           (lab.executor)
    ├── WorkerLostError            a worker stopped answering                 (lab.tune, lab.train)
    ├── SourceError                a benchmark or record file                 (lab.tasks)
    ├── DownloadError              a model file cannot be fetched             (local)
    └── ClientError                a model's API                              (clients)
        ├── ProviderUnreachableError   no connection                          retried
        ├── ProviderTimeoutError       connected, then silence                retried if within 60 s
        ├── RateLimitError             429                                    retried after its wait
        ├── ProviderOverloadedError    5xx, a lock, a failure upstream        retried
        ├── StreamInterruptedError     the stream ended too early             retried if unseen
        ├── InvalidReplyError          wrong content type, malformed JSON     retried
        ├── ProviderAuthError          401, 403                               another worker
        ├── ModelNotFoundError         404, a redirect                        another worker
        ├── ContextLengthError         the prompt does not fit                another worker
        ├── InsufficientCreditError    402, an exhausted quota                another worker
        ├── CircuitOpenError           failed too often, skipped for a while  another worker
        ├── NotRecordedError           the record has no such answer          another worker
        └── BadRequestError            any other 4xx, or nothing was sent     another worker
            ├── FormRefusedError       structured output is not supported     asked in another form
            └── UnsupportedFieldError  a request field is not supported       another worker

The HTTP statuses are the usual ones; the words of a provider may decide otherwise. A failed call
does not end the run: the engine turns a `ClientError` into a `Failure`. An error that only a few
modules handle is defined in one of them.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import ClassVar

from batuta.usage import Cost, Usage


class BatutaError(Exception):
    """The base class; `str(error)` says what happened and, often, what to do."""


class WorkflowError(BatutaError):
    """Text is not a valid workflow; the message names its first fault."""


class ConfigError(BatutaError):
    """A setting, option or file cannot be used, or something that it needs is missing.

    The message says what is wrong or what to change.
    """


class LimitReachedError(BatutaError):
    """A limit of a run, session, budget or tuning forbids another call."""

    def __init__(self, limit: str, spent: str, allowed: str) -> None:
        """Build the message: the limit was reached, `spent` of `allowed`; both may be clauses."""
        super().__init__(f"the limit on {limit} was reached: {spent} of {allowed}")
        self.limit = limit
        """`tokens`, `usd` or `seconds`; in tuning `calls` or `minutes`."""
        self._arguments = (limit, spent, allowed)

    def __reduce__(self) -> tuple[type[LimitReachedError], tuple[str, str, str]]:
        return type(self), self._arguments


class StoreError(BatutaError):
    """The store, or the file of a report or run, cannot be opened, read or written."""


class ExecutorError(BatutaError):
    """The processes or machines that should execute runs are lost or cannot be used."""


class WorkerLostError(BatutaError):
    """A worker stopped answering, so a measurement or a training step would be meaningless."""


class SourceError(BatutaError):
    """The file of a benchmark or record is missing, unusable or cannot be fetched."""


class DownloadError(BatutaError):
    """A model file cannot be fetched or written, or its content is not as expected."""


class SandboxError(BatutaError):
    """No sandbox can be built or started on this machine; the message gives the cause."""


class ClientError(BatutaError):
    """A call to a model returned no usable reply."""

    retryable: ClassVar[bool] = False
    """Whether the same call may succeed if it is made again."""
    code: ClassVar[str] = "client_error"
    """The error's name in runs and metrics."""

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
        """HTTP status, or the status that an error in a 200 response stands for; None: neither."""
        self.retry_after = retry_after
        """Seconds that the provider asked us to wait; None: it stated none."""
        self.usage = usage
        """Tokens that the failed call consumed; None: not known."""
        self.host = ""
        """Host and port that were called, and any redirect target, for the operator; never part
        of the message. Empty: not known."""
        self.cost = cost
        """Cost of the failed call; None: not known."""
        self.words = ""
        """The beginning of the provider's error body, for callers that may retry the request in
        another form; never shown. Empty: there was no body, or such a retry is too late."""


class ProviderUnreachableError(ClientError):
    """No connection could be made, or it was closed before the response began."""

    retryable = True
    code = "unreachable"


class ProviderTimeoutError(ClientError):
    """A connection was made, but nothing arrived for too long, or the provider timed out (408).

    The call is not retried if it lasted longer than `RetryPolicy.max_silence`.
    """

    retryable = True
    code = "timed_out"


class RateLimitError(ClientError):
    """The provider's rate limit was reached (usually 429)."""

    retryable = True
    code = "rate_limited"


class ProviderOverloadedError(ClientError):
    """The provider failed, or is too busy (5xx, 409, 424, 425 or 498)."""

    retryable = True
    code = "overloaded"


class StreamInterruptedError(ClientError):
    """A streamed reply stopped before the provider marked its end."""

    retryable = True
    code = "interrupted"


class InvalidReplyError(ClientError):
    """A response that cannot be parsed: wrong content type, malformed JSON, no choices."""

    retryable = True
    code = "bad_reply"


class ProviderAuthError(ClientError):
    """The key is missing, wrong or not allowed (401, 403)."""

    code = "unauthorised"


class ModelNotFoundError(ClientError):
    """The provider does not have this model (404), or the API is elsewhere (a redirect)."""

    code = "model_missing"


class ContextLengthError(ClientError):
    """The prompt does not fit in the model's context window."""

    code = "context_too_long"


class InsufficientCreditError(ClientError):
    """The account has no credit (402), or its quota is exhausted."""

    code = "out_of_credit"


class CircuitOpenError(ClientError):
    """The provider failed too often and is skipped for a while; nothing was sent."""

    code = "circuit_open"


class NotRecordedError(ClientError):
    """A recorded worker was asked a question that its record does not contain."""

    code = "not_recorded"


class BadRequestError(ClientError):
    """The provider refused the request (any other 4xx), or it cannot be sent in the API's form.

    Also a reply that does not fit the request, such as too few vectors.
    """

    code = "bad_request"


class FormRefusedError(BadRequestError):
    """The provider cannot enforce the requested output format, and a prompt would not suffice."""


class UnsupportedFieldError(BadRequestError):
    """The worker cannot honour a field of the request, which the message names."""

    code = "unsupported_field"


@contextmanager
def report_unwritable(what: object) -> Generator[None]:
    """Turn an OSError of the block into a StoreError: `what`, a path or name, cannot be written."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{what} cannot be written: {error.strerror or error}") from None
