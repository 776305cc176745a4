"""Searches 2,000 documents: how fast they are indexed, and how long a query takes.

python bench/file_search.py [DOCUMENTS] [--vectors]

With `--vectors` (the extra `encoder`) passages are also found by what they mean. That would take the encoder many
minutes, so it encodes ENCODED passages, from which the cost of all is told, and the vectors that are searched are
drawn by chance: as many, and as long.
"""

import argparse
import random
import statistics
import time

from batuta.tools.text_index import TextIndex, split_passages

WORDS = 30_000
DOCUMENT_WORDS = 900
QUERIES = 300
ENCODED = 60
PASSAGE = (
    "The observatory of a small town in the north was opened to the public by its first director, and has "
    "since been visited by people who want to look at the stars through an old telescope. "
) * 7


def make_documents(count: int, random_source: random.Random) -> dict[str, str]:
    """Texts whose words are as frequent as words are: the nth a share of 1/n."""
    words = [
        "".join(random_source.choices("abcdefghiklmnoprstuvwz", k=4 + n % 7)) for n in range(WORDS)
    ]
    shares = [1 / (rank + 1) for rank in range(WORDS)]
    documents: dict[str, str] = {}
    for number in range(count):
        said = random_source.choices(words, shares, k=DOCUMENT_WORDS)
        lines = [" ".join(said[at : at + 14]) for at in range(0, len(said), 14)]
        documents[f"document {number}"] = "\n".join(lines)
    return documents


def encode() -> float:
    """Seconds of the processor for a passage in English."""
    from batuta.encoder import open_encoder

    encoder = open_encoder()
    encoder([PASSAGE])
    began = time.process_time()
    encoder([PASSAGE] * ENCODED)
    return (time.process_time() - began) / ENCODED


def draw_vectors(documents: dict[str, str]) -> dict[str, bytes]:
    """Vectors for the documents' passages, as they are kept."""
    import numpy as np

    from batuta.encoder import WIDTH
    from batuta.tools.text_index import pack_vectors

    source = np.random.default_rng(7)
    drawn: dict[str, bytes] = {}
    for name, text in documents.items():
        rows = source.standard_normal((len(list(split_passages(text))), WIDTH), np.float32)
        drawn[name] = pack_vectors(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    return drawn


def open_index(*, vectors: bool) -> TextIndex:
    if not vectors:
        return TextIndex()
    from batuta.encoder import open_encoder

    return TextIndex(open_encoder())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("documents", nargs="?", type=int, default=2000)
    parser.add_argument("--vectors", action="store_true")
    wanted = parser.parse_args()
    random_source = random.Random(7)
    documents = make_documents(wanted.documents, random_source)
    size = sum(map(len, documents.values()))
    vectors = draw_vectors(documents) if wanted.vectors else None
    index = open_index(vectors=wanted.vectors)
    began, used = time.perf_counter(), time.process_time()
    index.add(documents.items(), vectors)
    took, used = time.perf_counter() - began, time.process_time() - used
    seconds, processor = [], []
    for _ in range(QUERIES):
        text = random_source.choice(list(documents.values())).split()
        query = " ".join(random_source.sample(text, 5))
        began, start = time.perf_counter(), time.process_time()
        assert index.search(query, documents, 8)
        seconds.append(time.perf_counter() - began)
        processor.append(time.process_time() - start)
    passages = sum(len(list(split_passages(text))) for text in documents.values())
    print(
        f"{len(documents)} documents, {size / 1e6:.1f} MB, {passages} passages: indexed in {took:.2f} s, "
        f"{size / took / 1e6:.1f} MB/s ({size / used / 1e6:.1f} MB/s of processor time)"
    )
    for name, values in (("clock", seconds), ("processor", processor)):
        values.sort()
        print(
            f"{QUERIES} queries of 5 words, {name}: median {statistics.median(values) * 1000:.1f} ms, "
            f"95th percentile {values[int(QUERIES * 0.95)] * 1000:.1f} ms"
        )
    if vectors is not None:
        each, kept = encode(), sum(map(len, vectors.values()))
        print(
            f"encoding: {each * 1000:.0f} ms of one core a passage, {each * passages / 60:.0f} minutes for all; "
            f"kept: {kept / 1e6:.1f} MB in the store, twice that in memory"
        )


if __name__ == "__main__":
    main()
