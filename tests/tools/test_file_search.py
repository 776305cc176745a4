"""Search in files: passages with their places, of the files that are there, quickly."""

import json

import pytest

from batuta.errors import StoreError
from batuta.tools.file_search import LOOK_SECONDS, FileSearch, FolderIndex, TenantIndexes
from batuta.tools.source import ToolContext, ToolLimits, call_tool
from batuta.tools.text_index import PASSAGE, TextIndex, split_passages

pytestmark = pytest.mark.anyio
LIMITS = ToolLimits(seconds=60.0)


def test_passages_have_their_places_and_lose_nothing():
    lines = [f"line {n} " + "x" * (1 + n % 89) for n in range(1, 300)]
    passages = list(split_passages("\n".join(lines)))
    assert "\n".join(text for _, text in passages) == "\n".join(line.strip() for line in lines)
    for place, text in passages:
        first, last = map(int, place.removeprefix("lines ").split("-"))
        assert text.startswith(f"line {first} ") and f"line {last} " in text.split("\n")[-1] + " "
    paged = list(split_passages("[page 1]\nOne.\n\n[page 2]\nTwo.\n"))
    assert paged == [("page 1", "One."), ("page 2", "Two.")]
    assert all(len(text) <= 2 * PASSAGE for _, text in split_passages("y" * 100_000))
    assert list(split_passages("")) == []


@pytest.mark.parametrize(
    "query", ['"', "* OR (", "NEAR(a b)", "body:x", "-", "", "file : 3", "a" * 5000, "\x00", "😀"]
)
def test_no_query_is_an_expression(query):
    index = TextIndex()
    index.add([("a", "The body of a file.")])
    assert all(hit.file == "a" for hit in index.search(query, ["a"], 5))


def test_words_are_found_in_the_named_texts_alone():
    index = TextIndex()
    index.add((f"f{n}", f"Number {n} has locks." if n % 2 else "Nothing.") for n in range(50))
    assert {hit.file for hit in index.search("lock", ["f1", "f2", "f3"], 9)} == {"f1", "f3"}
    index.add([("f1", "Changed.")])
    assert {hit.file for hit in index.search("locks", ["f1", "f3"], 9)} == {"f3"}
    index.keep_only({"f1"})
    assert index.search("locks", ["f1", "f3"], 9) == [] and index.size == len("Changed.")


def test_a_word_of_every_passage_does_not_hide_a_rare_one():
    index = TextIndex()
    index.add((f"f{n}", f"the river the river{' Imola' * (n == 250)}") for n in range(500))
    (first, *_) = index.search("the river Imola", [f"f{n}" for n in range(500)], 3)
    assert first.file == "f250"


class Files:
    """Files of a tenant in memory."""

    def __init__(self, tenant, **texts):
        self.tenant = tenant
        self.texts = texts
        self.read = 0

    async def list_names(self):
        return {name: f"{name}.md" for name in self.texts}

    async def list_all(self):
        return set(self.texts)

    async def read_texts(self, ids):
        self.read += len(ids)
        return [(one, self.texts[one]) for one in ids]

    async def read_contents(self):
        return [(f"{name}.md", text.encode()) for name, text in self.texts.items()]

    async def keep(self, name, content):
        raise StoreError(f"{name} is not kept")


async def ask(source, query, **context):
    return await call_tool(source, json.dumps({"query": query}), ToolContext(**context))


async def test_files_are_indexed_once_and_forgotten_when_deleted():
    indexes, files = TenantIndexes(), Files("acme", a="The lock of Imola.", b="Other words.")
    source = FileSearch(indexes, files=files, limits=LIMITS)
    for _ in range(2):
        output = await ask(source, "Imola", first_number=4)
        assert [(one.file, one.title, one.place) for one in output.citations] == [
            ("a", "a.md", "line 1")
        ]
        assert output.text.startswith("[4] a.md, line 1\n<fetched_text>\nThe lock of Imola.")
    assert files.read == 2
    del files.texts["a"]
    assert "Nothing was found" in (await ask(source, "Imola")).text
    other = FileSearch(indexes, files=Files("other", c="Nothing."), limits=LIMITS)
    assert (await ask(other, "Imola lock words")).citations == ()


async def test_what_waited_longest_makes_room():
    indexes = TenantIndexes(most=100)
    first, second = Files("one", a="x " * 40), Files("two", b="y " * 40)
    for files in (first, second, first):
        await ask(FileSearch(indexes, files=files, limits=LIMITS), "x y")
    assert (first.read, second.read) == (2, 1)


async def test_a_folder_is_searched_without_what_is_hidden_or_linked(tmp_path):
    outside = tmp_path / "outside.md"
    outside.write_text("lock outside")
    folder = tmp_path / "docs"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.md").write_text("First.\nThe lock of Imola.")
    (folder / ".secret").write_text("lock secret")
    (folder / "link.md").symlink_to(outside)
    index = FolderIndex(folder)
    source = FileSearch(TenantIndexes(), folder=index, limits=LIMITS)
    output = await ask(source, "lock")
    assert [one.file for one in output.citations] == ["deep/a.md"]
    (folder / "deep" / "a.md").unlink()
    (folder / "b.md").write_text("lock again")
    index._looked_at -= LOOK_SECONDS + 1
    assert [one.file for one in (await ask(source, "lock")).citations] == ["b.md"]
