"""Search in files: passages with their places, of the files that are there, quickly."""

import base64
import json
import subprocess
import sys
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.encoder import open_encoder
from batuta.errors import StoreError
from batuta.tools.file_search import LOOK_SECONDS, FileSearch, FolderIndex, TenantIndexes
from batuta.tools.office_text import docx_text, xlsx_text
from batuta.tools.source import ToolContext, ToolError, ToolLimits, call_tool
from batuta.tools.text_index import (
    PASSAGE_CHARACTERS,
    TextIndex,
    encode_text,
    fuse_ranks,
    split_passages,
)
from encoder.test_sentence_encoder import needs_encoder
from fakes import documents

pytestmark = pytest.mark.anyio
LIMITS = ToolLimits(seconds=60.0)
SHEET_OF = f'<worksheet xmlns="{documents.SHEET}"><row><c><v>{{}}</v></c></row></worksheet>'


def test_passages_have_their_places_and_lose_nothing():
    lines = [f"line {n} " + "x" * (1 + n % 89) for n in range(1, 300)]
    passages = list(split_passages("\n".join(lines)))
    assert "\n".join(text for _, text in passages) == "\n".join(line.strip() for line in lines)
    for place, text in passages:
        first, last = map(int, place.removeprefix("lines ").split("-"))
        assert text.startswith(f"line {first} ") and f"line {last} " in text.split("\n")[-1] + " "
    paged = list(split_passages("[page 1]\nOne.\n\n[page 2]\nTwo.\n"))
    assert paged == [("page 1", "One."), ("page 2", "Two.")]
    assert all(len(text) <= 2 * PASSAGE_CHARACTERS for _, text in split_passages("y" * 100_000))
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
        self.vectors = {}
        self.read = 0

    async def list_names(self):
        return {name: f"{name}.md" for name in self.texts}

    async def list_all(self):
        return set(self.texts)

    async def read_texts(self, ids):
        self.read += len(ids)
        return [(one, self.texts[one]) for one in ids]

    async def read_vectors(self, ids):
        return {one: self.vectors[one] for one in ids if one in self.vectors}

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


class UnreadableFiles(Files):
    async def list_names(self):
        raise StoreError("the database fails")


async def test_files_that_cannot_be_read_are_an_error_of_the_tool():
    source = FileSearch(TenantIndexes(), files=UnreadableFiles("acme"), limits=LIMITS)
    with pytest.raises(ToolError, match="the files cannot be read: the database fails"):
        await ask(source, "Imola")


def test_sheets_are_numbered_in_their_order():
    pytest.importorskip("lxml")
    rows = {f"xl__worksheets__sheet{n}": SHEET_OF.format(n) for n in (1, 2, 10)}
    read = xlsx_text(base64.b64encode(documents.zipped(**rows)).decode(), "", 1000)
    assert read["text"] == "[sheet 1]\n1\n[sheet 2]\n2\n[sheet 3]\n10"


def test_a_phonetic_guide_is_no_text_of_a_sheet():
    pytest.importorskip("lxml")
    name = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    cell = '<c t="inlineStr"><is><r><t>東</t></r><t>京</t><rPh><t>トウキョウ</t></rPh></is></c>'
    sheet = f'<worksheet xmlns="{name}"><sheetData><row>{cell}</row></sheetData></worksheet>'
    data = base64.b64encode(documents.zipped(xl__worksheets__sheet1=sheet)).decode()
    assert xlsx_text(data, "", 1000)["text"] == "[sheet 1]\n東京"


def test_line_breaks_of_a_paragraph_separate_words():
    pytest.importorskip("lxml")
    document = documents.docx("lock</w:t><w:br/><w:t>gate</w:t><w:tab/><w:t>weir")
    assert docx_text(base64.b64encode(document).decode(), "", 1000)["text"] == "lock\ngate\tweir"


async def test_a_folder_that_takes_longer_than_a_search_is_indexed_by_the_next_ones(tmp_path):
    for number in range(200):
        (tmp_path / f"{number}.md").write_text(f"The lock {number} is 999.\n" * 1_000)
    limits = ToolLimits(seconds=0.05)
    source = FileSearch(TenantIndexes(), folder=FolderIndex(tmp_path), limits=limits)
    for _ in range(600):
        with suppress(ToolError):
            assert (await ask(source, "999")).citations
            return
    pytest.fail("no search came to an end")


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


PARAPHRASED = "how may I get my money back"
REFUND = "A customer whom the goods do not please is reimbursed within a fortnight."
OTHERS = (
    "The observatory of Imola was opened in 1931.",
    "Locks are greased once a year, in spring.",
    "I may go back to the river: how deep it is, nobody knows.",
)


def vectors_of(**texts):
    return {name: encode_text(open_encoder(), text) for name, text in texts.items()}


@needs_encoder
def test_a_paraphrase_is_found_by_its_meaning_and_not_by_its_words():
    texts = {"refund": REFUND, **{f"other{n}": text for n, text in enumerate(OTHERS)}}
    words, both = TextIndex(), TextIndex(open_encoder())
    words.add(texts.items())
    both.add(texts.items(), vectors_of(**texts))
    assert "refund" not in [hit.file for hit in words.search(PARAPHRASED, texts, 8)]
    assert "refund" in [hit.file for hit in both.search(PARAPHRASED, texts, 2)]
    assert next(hit.file for hit in both.search("greased locks", texts, 8)) == "other1"
    assert both.search("quantum chromodynamics", texts, 8) == []


@needs_encoder
def test_vectors_are_found_in_the_named_texts_alone_and_forgotten_with_them():
    index = TextIndex(open_encoder())
    index.add([("a", REFUND), ("b", REFUND)], vectors_of(a=REFUND, b=REFUND))
    assert {hit.file for hit in index.search(PARAPHRASED, ["b"], 8)} == {"b"}
    size = index.size
    index.keep_only({"a"})
    assert {hit.file for hit in index.search(PARAPHRASED, ["a", "b"], 8)} == {"a"}
    assert index.size == size / 2
    index.add([("a", OTHERS[1])])
    assert index.search(PARAPHRASED, ["a"], 8) == [] and index.size == len(OTHERS[1])


@needs_encoder
def test_vectors_of_another_encoder_or_of_other_passages_say_nothing():
    kept = vectors_of(a=REFUND)["a"]
    other_text = vectors_of(a=REFUND + "x" * 5 * PASSAGE_CHARACTERS)["a"]
    for wrong in (b"", b"another-model\n" + kept.partition(b"\n")[2], kept[:-1], other_text):
        index = TextIndex(open_encoder())
        index.add([("a", REFUND)], {"a": wrong})
        assert index.search(PARAPHRASED, ["a"], 8) == []
        index.encode_missing(5.0)
        assert [hit.file for hit in index.search(PARAPHRASED, ["a"], 8)] == ["a"]


@needs_encoder
async def test_the_vectors_of_files_are_those_that_were_kept():
    files = Files("acme", a=REFUND, b=OTHERS[0])
    files.vectors = vectors_of(a=REFUND)
    indexes = TenantIndexes(encoder=open_encoder())
    hits, names = await indexes.search(files, PARAPHRASED, 8)
    assert [names[hit.file] for hit in hits] == ["a.md"]
    other = Files("other", c=OTHERS[1])
    assert (await indexes.search(other, PARAPHRASED, 8))[0] == []


@needs_encoder
async def test_passages_of_a_folder_get_vectors_when_it_is_searched(tmp_path):
    (tmp_path / "terms.md").write_text(REFUND)
    index = FolderIndex(tmp_path, open_encoder())
    assert [hit.file for hit in await index.search(PARAPHRASED, 8)] == ["terms.md"]


@given(st.lists(st.lists(st.integers(0, 30), unique=True), max_size=4))
def test_what_is_first_everywhere_is_first_and_nothing_is_lost(rankings):
    fused = fuse_ranks(rankings)
    assert sorted(fused) == sorted({row for ranking in rankings for row in ranking})
    for row in fused:
        if rankings and all(ranking[:1] == [row] for ranking in rankings):
            assert fused[0] == row
    if len(rankings) == 1:
        assert fused == rankings[0]


WITHOUT_EXTRA = """
import sys
from batuta.config.tool_settings import FileSearchSetting, ToolsSetting

sys.modules["onnxruntime"] = None  # as it is where the extra is not installed
from batuta.config.tools import open_served_tools
from batuta.errors import ConfigError

setting = FileSearchSetting(server_tool=True, vectors=sys.argv[1] == "on")
try:
    open_served_tools(ToolsSetting(files=setting), None, {})
except ConfigError as error:
    print(error)
"""


def test_vectors_without_the_extra_are_refused_in_a_sentence():
    said = [
        subprocess.run(
            [sys.executable, "-c", WITHOUT_EXTRA, state], capture_output=True, text=True, check=True
        ).stdout
        for state in ("on", "off")
    ]
    assert said[0].startswith("[tools.files] vectors: the sentence encoder needs an extra: ")
    assert said[0].count("\n") == 1 and said[1] == ""
