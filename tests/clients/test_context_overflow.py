"""A prompt that does not fit is told apart from other refusals, whoever says it."""

import pytest

from batuta import errors
from batuta.clients import Secret, WorkerSpec, open_client
from batuta.clients.error_mapping import error_from_reply, error_from_response
from batuta.core import Request, Sampling, Worker, WorkerId, user_message
from batuta.gateway.serving.error_mapping import stated_sizes
from clients.cases import RecordingListener
from fakes.refusing import RefusingServer, error
from fakes.server import KEY

OVERFLOWS = [
    (400, "input length and `max_tokens` exceed context limit: 199211 + 8192 > 200000, decrease input length or `max_tokens` and try again", (207403, 200000)),
    (400, "prompt is too long: 210000 tokens > 200000 maximum", (210000, 200000)),
    (400, "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (8000 in the messages, 1000 in the completion).", (9000, 8192)),
    (400, "Your input exceeds the context window of this model. Please adjust your input and try again.", (None, None)),
    (400, "The decoder prompt (length 9000) is longer than the maximum model length of 8192. Make sure that `max_model_len` is no smaller.", (9000, 8192)),
    (400, "The input (9000 tokens) is longer than the model's context length (8192 tokens).", (9000, 8192)),
    (400, "Input length (9000 tokens) exceeds the maximum allowed length (8186 tokens). Use a shorter input or enable --allow-auto-truncate.", (9000, 8186)),
    (400, "This model's maximum prompt length is 131072 but the request contains 537812 tokens.", (537812, 131072)),
    (400, "Invalid request: Your request exceeded model token limit: 262144", (None, 262144)),
    (400, "prompt token count of 150000 exceeds the limit of 128000", (150000, 128000)),
    (400, "Prompt exceeds max length", (None, None)),
    (400, "tokens in request more than max tokens allowed", (None, None)),
    (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 `inputs` tokens and 0 `max_new_tokens`", (9000, 8193)),
    (422, "Input validation error: `inputs` must have less than 1024 tokens. Given: 2000", (2000, 1024)),
    (400, "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]", (None, 129024)),
    (500, "Context size has been exceeded.", (None, None)),
    (500, "the request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it", (9000, 8192)),
    (500, "input is too large to process. increase the physical batch size", (None, None)),
    (400, "Input is too long for requested model.", (None, None)),
    (400, "invalid params, context window exceeds limit (2013)", None),
    (400, "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000. Try using a shorter prompt", (5000, 4081)),
    (400, "Prompt contains 40,000 tokens and 0 draft tokens, too large for model with 32,768 maximum context length", (40000, 32768)),
    (400, "The input token count (1048600) exceeds the maximum number of tokens allowed (1048576).", (1048600, 1048576)),
    (400, "the input length exceeds the context length", (None, None)),
    (400, "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192", (9000, 8192)),
    (400, "The prompt is too long: 300000, model maximum context length: 131071", (300000, 131071)),
    (400, "The number of tokens 9000 is larger than the model max length 8192", None),
    (400, "This model supports at most 8,192 input tokens", None),
    (400, "request exceeds context: n_prompt_tokens (9000) >= n_ctx (8192)", None),
    (400, "Your prompt is larger than the context", None),
    (400, "Conversation is too long", (None, None)),
    (413, "Request too large", (None, None)),
    (400, "输入内容过长", (None, None)),
    (400, "Trying to keep the first 9000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens", (9000, 4096)),
]  # fmt: skip


@pytest.mark.parametrize(("status", "message", "sizes"), OVERFLOWS)
def test_every_wording_is_known(status, message, sizes):
    for payload in (
        {"error": {"message": message}},
        {"error": message},
        {"message": message},
        message,
    ):
        assert type(error_from_response(status, payload)) is errors.ContextLengthError
    code = status if status != 400 else "invalid_request_error"
    told = error_from_reply({"error": {"message": message, "type": code}})
    assert type(told) is errors.ContextLengthError
    assert sizes is None or stated_sizes(message) == sizes


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (413, {"type": "request_too_large", "message": "Request exceeds the maximum size"}),
        (400, {"code": "model_max_prompt_tokens_exceeded", "message": "no"}),
        (400, {"code": "context_length_exceeded", "message": ""}),
    ],
)
def test_and_every_code(status, error):
    assert type(error_from_response(status, {"error": error})) is errors.ContextLengthError


GROQ = (
    "Request too large for model `m` in organization `o` service tier `on_demand` on tokens per "
    "minute (TPM): Limit 6000, Requested 9000, please reduce your message size and try again."
)


def test_too_many_tokens_a_minute_are_a_rate():
    error = {"message": GROQ, "type": "tokens", "code": "rate_limit_exceeded"}
    assert type(error_from_response(413, {"error": error})) is errors.RateLimitError


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "max_tokens is too large: 999999. This model supports at most 16384 completion tokens", errors.BadRequestError),
        (400, "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens", errors.BadRequestError),
        (400, "max_tokens must be less than 8192", errors.BadRequestError),
        (400, "image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes", errors.BadRequestError),
        (400, "Requested max_tokens exceeds the model output limit", errors.BadRequestError),
        (400, "temperature exceeds the maximum of 2", errors.BadRequestError),
        (400, "The schema is too long", errors.BadRequestError),
        (400, "Invalid 'tools[0].function.name': string too long", errors.BadRequestError),
        (500, "it broke", errors.ProviderOverloadedError),
        (503, "Context size has been exceeded", errors.ProviderOverloadedError),
        (429, "Rate limit reached on tokens per min (TPM): Limit 30000, Requested 40000.", errors.RateLimitError),
    ],
)  # fmt: skip
def test_other_limits_are_others(status, message, kind):
    assert type(error_from_response(status, {"error": {"message": message}})) is kind


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize("where", ["before", "behind"])
def test_what_is_meant_is_read_before_and_behind_a_repeated_request(status, where):
    meant, request = "prompt is too long: 210000 tokens > 200000 maximum", "1/" * 500_000
    message = f"{meant}: {request}" if where == "before" else f"{request}: {meant}"
    found = error_from_response(status, {"error": {"message": message}}, headers=None)
    assert isinstance(found, errors.ContextLengthError)
    assert stated_sizes(f"{meant} {'x' * 100}") == (210000, 200000)


def test_no_more_of_a_message_is_looked_at_than_both_its_ends():
    message = "a" * 3_000 + " prompt is too long " + "b" * 1_000_000
    found = error_from_response(400, {"error": {"message": message}}, headers=None)
    assert not isinstance(found, errors.ContextLengthError)


TOGETHER = [
    "'max_tokens' or 'max_completion_tokens' is too large: {cap}. This model's maximum context length is 32768 tokens and your request has {prompt} input tokens ({cap} > 32768 - {prompt}). (parameter=max_tokens, value={cap})",
    "This model's maximum context length is 32768 tokens. However, you requested {total} tokens ({prompt} in the messages, {cap} in the completion). Please reduce the length of the messages or completion.",
    "Requested token count exceeds the model's maximum context length of 32768 tokens. You requested a total of {total} tokens: {prompt} tokens from the input messages and {cap} tokens for the completion.",
    "This endpoint's maximum context length is 32,768 tokens. However, you requested about {total:,} tokens ({prompt:,} of text input, {cap:,} in the output).",
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 32768. Given: {prompt} `inputs` tokens and {cap} `max_new_tokens`",
    "input length and `max_tokens` exceed context limit: {prompt} + {cap} > 32768, decrease input length or `max_tokens` and try again",
]  # fmt: skip


def served_by_window(words, prompt, code=400):
    def rule(body):
        cap = body.get("max_tokens", 0)
        message = words.format(cap=cap, prompt=prompt, total=prompt + cap)
        return error(message, code=code) if prompt + cap > 32768 else None

    return RefusingServer(rule)


def served_worker(server):
    worker = Worker(id=WorkerId("ada"), model="qwen2.5-7b")
    return WorkerSpec(worker=worker, provider="vllm", base_url=server.url, key=Secret(KEY))


@pytest.mark.anyio
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("words", TOGETHER)
async def test_a_prompt_that_fits_without_so_long_an_answer_is_answered(words, streaming, http):
    listener = RecordingListener(streaming=streaming)
    for cap in (32_000, 15_310):
        request = Request(messages=(user_message("Hi."),), sampling=Sampling(max_tokens=cap))
        async with served_by_window(words, 17_459) as server:
            reply = await open_client(served_worker(server), http).complete(request, listener)
        assert reply.text == "Fine." and server.refused <= 2
        assert server.taken["max_tokens"] == 32_768 - 17_459


@pytest.mark.anyio
@pytest.mark.parametrize("words", TOGETHER)
async def test_a_prompt_that_leaves_hardly_any_room_does_not_fit(words, http):
    request = Request(messages=(user_message("Hi."),), sampling=Sampling(max_tokens=8_192))
    for prompt in (32_000, 40_000):
        async with served_by_window(words, prompt) as server:
            with pytest.raises(errors.ContextLengthError):
                await open_client(served_worker(server), http).complete(request)
            assert server.refused <= 2


OWN_LIMITS = [
    "max_tokens is too large: {cap}. This model supports at most 16384 completion tokens, whereas you provided {cap}.",
    "max_tokens: {cap} > 16384, which is the maximum allowed number of output tokens for claude-3-5-haiku-20241022",
    "Invalid max_tokens value, the valid range of max_tokens is [1, 16384]",
    "Range of max_tokens should be [1, 16384]",
    "`max_tokens` must be less than or equal to `16384`, the maximum value for `max_tokens` is less than the `context_window` for this model",
    "The parameter `max_tokens` specified in the request are not valid: integer above maximum value, expected a value <= 16384, but got {cap} instead. Request id: 0217752964393142fa50",
    "The maximum tokens you requested exceeds the model limit of 16384. Try again with a maximum tokens value that is not higher than 16384.",
]  # fmt: skip


@pytest.mark.anyio
@pytest.mark.parametrize("words", OWN_LIMITS)
async def test_a_limit_above_the_model_s_own_is_lowered_and_never_sent_under_another_name(
    words, http
):
    def rule(body):
        cap = body.get("max_tokens", 0)
        return error(words.format(cap=cap), code=400) if cap > 16_384 else None

    async with RefusingServer(rule) as server:
        client = open_client(served_worker(server), http)
        for cap, sent in ((32_000, 16_384), (100, 100)):
            asked = Request(messages=(user_message("Hi."),), sampling=Sampling(max_tokens=cap))
            assert (await client.complete(asked)).text == "Fine."
            assert server.taken["max_tokens"] == sent
            assert "max_completion_tokens" not in server.taken
    assert server.refused == 1
