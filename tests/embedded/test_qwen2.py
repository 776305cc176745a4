"""The network beside torch's."""

import json
import warnings

import numpy as np
import pytest

from batuta.core import Finish, Request, Sampling, system_message, user_message
from batuta.embedded import EmbeddedClient, KVCache, Qwen2, Qwen2Config
from batuta.embedded.model_files import SafetensorsFile, read_json
from embedded import making

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SHAPES = {
    "plain": {},
    "one key head": {"num_key_value_heads": 1},
    "all key heads": {"num_key_value_heads": 4, "tie_word_embeddings": False},
    "four layers": {"num_hidden_layers": 4, "hidden_size": 96, "intermediate_size": 144},
    "other base": {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
    "odd group": {"num_attention_heads": 6, "hidden_size": 96, "rms_norm_eps": 1e-3},
    "fp16": {"hidden_size": 64, "tie_word_embeddings": False},
}
PROMPTS = [text[at : at + 60] for text in dict.fromkeys(making.TEXTS) for at in (0, 7, 13, 20)]
MOST = 20


def saved(folder, name):
    """A model of that shape, saved by transformers as it would save a trained one."""
    settings = making.config(**SHAPES[name])
    torch.manual_seed(len(name))
    network = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**settings))
    random = making.weights(settings, seed=len(name))
    missing = network.load_state_dict({n: torch.tensor(w) for n, w in random.items()}, strict=False)
    assert set(missing.missing_keys) <= {"lm_head.weight"}
    assert not missing.unexpected_keys
    network = network.to(torch.float16) if name == "fp16" else network
    network.save_pretrained(folder)
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=making.tokenizer("frames"),
        pad_token="<|pad|>",
        eos_token=making.END,
        chat_template=making.CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
    wrapped.save_pretrained(folder)
    network = transformers.Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return network.eval(), wrapped


@pytest.fixture(scope="module", params=SHAPES)
def pair(request, tmp_path_factory):
    """The folder, transformers' network and its tokenizer."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    torch.set_num_threads(1)  # several are no faster here, and far slower on a busy machine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return folder, *saved(folder, request.param)


def opened(folder):
    shape = Qwen2Config.read(read_json(folder / "config.json"))
    return Qwen2(shape, SafetensorsFile.read(folder / "model.safetensors"))


def test_logits_are_those_of_torch(pair):
    folder, network, _ = pair
    ours = opened(folder)
    tokens = np.random.default_rng(1).integers(0, ours.shape.vocabulary, 160).tolist()
    with torch.inference_mode():
        theirs = network(torch.tensor([tokens])).logits[0].numpy()
    assert theirs.std() > 0.5, "a model without opinions proves nothing"
    cache = KVCache(ours.shape, len(tokens))
    one_by_one = np.array([ours.logits([token], cache) for token in tokens])
    assert np.abs(one_by_one - theirs).max() < 1e-4
    assert cache.length == len(tokens)
    for size in (1, 2, 17, 64, 160):
        at_once = ours.logits(tokens[:size], KVCache(ours.shape, size))
        assert np.abs(at_once - theirs[size - 1]).max() < 1e-4
    cache = KVCache(ours.shape, len(tokens))
    for start in range(0, len(tokens), 33):
        in_blocks = ours.logits(tokens[start : start + 33], cache)
    assert np.abs(in_blocks - theirs[-1]).max() < 1e-4


def greedy(network, tokens, most):
    """The likeliest tokens, one after another, up to and with the end."""
    cache, written = KVCache(network.shape, len(tokens) + most), []
    logits = network.logits(tokens, cache)
    while len(written) < most and 1 not in written:
        written.append(int(logits.argmax()))
        logits = network.logits(written[-1:], cache)
    return written


@pytest.mark.slow
@pytest.mark.anyio
async def test_greedy_replies_are_those_of_transformers(pair):
    folder, network, wrapped = pair
    model, ours = EmbeddedClient.open(folder), opened(folder)
    different = set()
    for prompt in PROMPTS:
        said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt}]
        tokens = wrapped.apply_chat_template(said, add_generation_prompt=True, return_dict=False)
        written = generated(network, tokens)
        assert greedy(ours, tokens, MOST) == written
        request = Request(
            messages=(system_message("Be brief."), user_message(prompt)),
            sampling=Sampling(max_tokens=MOST),
        )
        reply = await model.complete(request)
        assert reply.text == wrapped.decode(written, skip_special_tokens=True)
        assert (reply.usage.input, reply.usage.output) == (len(tokens), len(written))
        assert reply.finish is (Finish.STOP if written[-1] == 1 else Finish.LENGTH)
        different.add(tuple(written))
    assert len(PROMPTS) >= 20
    assert len(different) > 10, "the replies differ from each other"


def generated(network, tokens):
    """What transformers generates."""
    with torch.inference_mode():
        out = network.generate(
            torch.tensor([tokens]),
            attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
            do_sample=False,
            max_new_tokens=MOST,
            pad_token_id=0,
        )
    return out[0, len(tokens) :].tolist()


def test_transformers_saves_what_the_other_tests_write(pair):
    folder = pair[0]
    written = {path.name for path in folder.iterdir()}
    assert written >= {"config.json", "generation_config.json", "model.safetensors"}
    assert set(making.config()) <= set(json.loads((folder / "config.json").read_text()))
