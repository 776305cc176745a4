"""`[confidence]`: what is refused when the settings are read, and what they become."""

import pytest

from batuta.clients import HttpTransport
from batuta.config.load import load_config
from batuta.engine.confidence import SampleSetting
from batuta.errors import ConfigError

pytestmark = pytest.mark.anyio
WORKER = '[[workers]]\nid = "ada"\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n'


async def load(folder, confidence, before=""):
    path = folder / "batuta.toml"
    path.write_text(f"{WORKER}{before}[confidence]\n{confidence}\n")
    async with HttpTransport() as http:
        return await load_config(http, pool=str(path), environ={})


async def test_samples_without_a_file_are_taken_for_one_that_is_to_be_fitted(tmp_path):
    config = await load(tmp_path, "samples = 3")
    assert config.confidence is not None and config.confidence.collects
    assert config.confidence.samples == SampleSetting(count=3)
    assert any("until batuta eval --calibrate fits it" in note for note in config.notes)
    named = await load(tmp_path, 'samples = 1\nsampler = "ada"')
    assert named.confidence is not None
    assert named.confidence.samples == SampleSetting(count=1, worker="ada")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("confidence", "sentence"),
    [
        ("samples = 0", "needs `file`"),
        ('sampler = "ada"\nfile = "x.json"', "`sampler` needs `samples`"),
        ('samples = 2\nunsure = "refuse"', "`unsure` needs `file`"),
        ("samples = 11", "must be at most 10"),
        ('samples = 2\nsampler = "adda"', "there is no language model 'adda'"),
    ],
)
async def test_what_means_nothing_is_refused_in_a_sentence(tmp_path, confidence, sentence):
    with pytest.raises(ConfigError, match="confidence") as refused:
        await load(tmp_path, confidence)
    assert sentence in str(refused.value)


async def test_a_least_needs_a_file_and_not_samples_alone(tmp_path):
    least = '[models.x]\nconductor = "single/ada"\nmin_confidence = 0.9\n'
    with pytest.raises(ConfigError, match="fit one with batuta eval --calibrate"):
        await load(tmp_path, "samples = 2", before=least)
