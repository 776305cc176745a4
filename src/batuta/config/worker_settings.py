"""The settings of a worker: how it is reached, how it samples, and what is known about it."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal, Self, cast

from pydantic import AfterValidator, Field, model_validator

from batuta.clients.adaptations import Kind
from batuta.clients.providers import LOCAL, PYTHON, TOOL_PROVIDERS
from batuta.clients.think_tags import ThinkTags
from batuta.config.settings_file import StrictModel, VariableName
from batuta.core import Skill
from batuta.core.worker import IMAGE

EffortWord = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
MAX_PROGRAMS = 4
"""Maximum number of programs that one worker runs at the same time."""
_REQUEST_FIELDS = frozenset(
    {
        "model",
        "messages",
        "stream",
        "stream_options",
        "tools",
        "tool_choice",
        "response_format",
        "n",
    }
)
"""Fields of the body that each request sets itself."""


def _without_own_fields(body: dict[str, Any]) -> dict[str, Any]:
    if taken := sorted(_REQUEST_FIELDS & set(body)):
        raise ValueError(f"{taken[0]} is decided by each request and cannot be set here")
    return body


ExtraBody = Annotated[dict[str, Any], AfterValidator(_without_own_fields)]


def _without_needed_fields(names: dict[str, str]) -> dict[str, str]:
    if taken := sorted({"model", "messages", "input", "stream", "tools"} & set(names)):
        raise ValueError(f"{taken[0]} must keep its name and cannot be renamed here")
    return names


FieldNames = Annotated[dict[str, str], AfterValidator(_without_needed_fields)]


class PriceSetting(StrictModel):
    """Dollars per million tokens, except `call` and `search`.

    `cached`, `cache_write` and `audio` are prices of input; None: the price of `input`.
    """

    input: Decimal = Field(ge=0)
    output: Decimal = Field(ge=0)
    cached: Decimal | None = Field(default=None, ge=0)
    cache_write: Decimal | None = Field(default=None, ge=0)
    audio: Decimal | None = Field(default=None, ge=0)
    call: Decimal = Field(default=Decimal(0), ge=0)
    """Dollars per call in addition to its tokens, such as the price of an image."""
    search: Decimal | None = Field(default=None, ge=0)
    """Dollars per search that the provider runs; None: unknown. See `native_tools`."""


class SamplingSetting(StrictModel):
    """A worker's default sampling parameters; None: the model's default."""

    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    stop: tuple[str, ...] = ()
    seed: int | None = None
    effort: EffortWord | None = None
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    top_k: int | None = Field(default=None, ge=1)


class SkillSetting(StrictModel):
    """A worker's accuracy on a family of questions."""

    share: float = Field(ge=0, le=1)
    """Proportion of correct answers."""
    questions: int | None = Field(default=None, ge=1)
    """Number of questions on which the accuracy was measured; None: not measured."""


_MODEL_OPTIONS = (
    "adapt", "base_url", "context_window", "deployments", "extra_body", "field_names", "key_env",
    "native_tools", "openai_api", "price", "rpm", "sampling", "skills", "strength", "think_tags",
    "tpm", "weight",
)  # fmt: skip
"""Settings that do not apply to workers without a model, which run code or call a tool."""

_SERVER_OPTIONS = ("base_url", "deployments", "key_env", "native_tools", "rpm", "tpm", "weight")
"""Settings that do not apply to a model that Batuta serves itself."""


class WorkerSetting(StrictModel):
    """A worker and how it is reached."""

    id: str = Field(min_length=1)
    model: str = Field(min_length=1)
    provider: str = "compatible"
    """The provider's name; `compatible`: any other server with an OpenAI-compatible API."""
    base_url: str = ""
    """The URL of the API; empty: the provider's usual one."""
    key_env: VariableName = ""
    """The environment variable with the key; empty: the provider's usual one."""
    description: str = ""
    """A line about the worker for the conductor; empty: what is known about the model."""
    tags: tuple[str, ...] = ()
    """Tags in addition to the model's known ones."""
    context_window: int | None = Field(default=None, ge=1)
    """Tokens; None: the model's known window, if any."""
    price: PriceSetting | None = None
    """None: the model's known price, if any."""
    strength: float | None = Field(default=None, ge=0, le=1)
    """Accuracy when the worker answers alone, in [0, 1]; None: unknown."""
    skills: dict[str, float | SkillSetting] = Field(default={})
    """Accuracy by family of questions; empty: what is known about the model."""
    seconds: float | None = Field(default=None, gt=0)
    """Typical seconds per answer; None: unknown."""
    sampling: SamplingSetting = SamplingSetting()
    extra_body: ExtraBody = Field(default={})
    """Further fields of every request to an OpenAI-compatible server, such as `lora` for
    llama.cpp."""
    adapt: tuple[Kind, ...] = ()
    """Known incompatibilities of the worker's server that are worked around from the first request.
    """
    field_names: FieldNames = Field(default={})
    """The server's own names of request fields; a field with an empty name is not sent."""
    think_tags: ThinkTags = "off"
    """How reasoning is separated from answers: `off` (not at all), `tagged` (an answer may begin
    with `<think>`) or `open` (an answer begins after it: the chat template ends with `<think>`)."""
    native_tools: tuple[Literal["web_search"], ...] = ()
    """Server tools that the provider runs instead of Batuta."""
    openai_api: Literal["chat", "responses", "images"] | None = None
    """The OpenAI API that is called; None: the API that the model needs."""
    enabled: bool = True
    """Whether the worker is used; if not, it is ignored, as if it were not in the file."""
    concurrency: int = Field(default=32, ge=1)
    """Maximum number of calls at the same time."""
    rpm: int | None = Field(default=None, ge=1)
    """Maximum number of requests per minute; None: no limit."""
    tpm: int | None = Field(default=None, ge=1)
    """Maximum number of tokens per minute; None: no limit."""
    weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Relative share of the calls that go to `base_url`, beside the weights of `deployments`; 0:
    it is called only if the others fail."""
    deployments: tuple[DeploymentSetting, ...] = ()
    """Further endpoints of the same model."""

    @model_validator(mode="before")
    @classmethod
    def _default_model(cls, data: Any) -> Any:
        """Let workers without a model leave out `model`; it is then the provider's name."""
        if not isinstance(data, dict):
            return data
        values = cast("dict[str, Any]", data)
        provider = values.get("provider")
        has_none = provider == PYTHON or provider in TOOL_PROVIDERS
        return {"model": provider, **values} if has_none else values

    @model_validator(mode="after")
    def _check_unused_settings(self) -> Self:
        if self.provider == PYTHON:
            reason = "applies only to language models, and this worker runs code"
            self.refuse_settings(_MODEL_OPTIONS, reason)
            if "concurrency" in self.model_fields_set and self.concurrency > MAX_PROGRAMS:
                raise ValueError(f"a worker runs at most {MAX_PROGRAMS} programs at the same time")
        if self.provider in TOOL_PROVIDERS:
            self.refuse_settings(_MODEL_OPTIONS, "applies only to language models; see [tools]")
        if self.openai_api == "images" and IMAGE not in self.tags:
            raise ValueError('`openai_api = "images"` makes only images: add the tag "image"')
        if self.provider == LOCAL:
            reason = "applies only to servers, and Batuta serves this model itself"
            self.refuse_settings(_SERVER_OPTIONS, reason)
        if not self.deployments:
            self.refuse_settings(("weight",), "shares calls among `deployments`: there are none")
        elif not self.weight and not any(each.weight for each in self.deployments):
            raise ValueError("all weights are 0: at least one must be above 0")
        return self

    @property
    def known_skills(self) -> tuple[Skill, ...]:
        """The skills in the form of the pool's workers."""
        skills = {
            family: each if isinstance(each, SkillSetting) else SkillSetting(share=each)
            for family, each in self.skills.items()
        }
        return tuple(
            Skill(family=family, share=each.share, questions=each.questions)
            for family, each in skills.items()
        )


class DeploymentSetting(StrictModel):
    """Another endpoint of a worker's model.

    A `model` or `provider` that is left out is that of the worker. Without `key_env`, an endpoint
    of the worker's provider gets the worker's key, and one of another provider that provider's
    usual key. The limits are the endpoint's own.
    """

    model: str | None = None
    provider: str | None = None
    base_url: str = Field(min_length=1)
    key_env: VariableName = ""
    weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    concurrency: int = Field(default=32, ge=1)
    rpm: int | None = Field(default=None, ge=1)
    tpm: int | None = Field(default=None, ge=1)
