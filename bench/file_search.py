"""Searches 2,000 documents: how fast they are indexed, and how long a query takes.

python bench/file_search.py [DOCUMENTS]
"""

import random
import statistics
import sys
import time

from batuta.tools.text_index import TextIndex

WORDS = 30_000
DOCUMENT_WORDS = 900
QUERIES = 300


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


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    random_source = random.Random(7)
    documents = make_documents(count, random_source)
    size = sum(map(len, documents.values()))
    index = TextIndex()
    began = time.perf_counter()
    index.add(documents.items())
    took = time.perf_counter() - began
    seconds: list[float] = []
    for _ in range(QUERIES):
        text = random_source.choice(list(documents.values())).split()
        query = " ".join(random_source.sample(text, 5))
        began = time.perf_counter()
        assert index.search(query, documents, 8)
        seconds.append(time.perf_counter() - began)
    seconds.sort()
    print(
        f"{count} documents, {size / 1e6:.1f} MB: indexed in {took:.2f} s, {size / took / 1e6:.1f} MB/s"
    )
    print(
        f"{QUERIES} queries of 5 words: median {statistics.median(seconds) * 1000:.1f} ms, "
        f"95th percentile {seconds[int(QUERIES * 0.95)] * 1000:.1f} ms"
    )


if __name__ == "__main__":
    main()
