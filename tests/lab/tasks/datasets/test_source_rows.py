"""Every form of file gives the same rows."""

import csv
import gzip
import json
import tracemalloc
from itertools import islice

import pytest

from batuta.errors import SourceError
from batuta.files import file_sha256
from batuta.lab.tasks.datasets.rows import MAX_ROW_BYTES, read_rows

ROWS = [{"id": "a", "text": "one\u2028line"}, {"id": "b", "text": "ü \n two"}]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


def write_zst(path):
    pa = pytest.importorskip("pyarrow")
    with pa.output_stream(str(path), compression="zstd") as stream:
        stream.write(LINES.encode())


def write_parquet(path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(ROWS), path)


def write_csv(path):
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, ["id", "text"])
        writer.writeheader()
        writer.writerows(ROWS)


FORMS = {
    "x.jsonl": lambda path: path.write_text(LINES, encoding="utf-8"),
    "x.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES.encode())),
    "x.jsonl.zst": write_zst,
    "x.json": lambda path: path.write_text(json.dumps(ROWS), encoding="utf-8"),
    "x.csv": write_csv,
    "x.parquet": write_parquet,
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_gives_the_rows(tmp_path, name):
    FORMS[name](tmp_path / name)
    assert list(read_rows(tmp_path / name)) == ROWS


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.jsonl", '{"a": 1}\n\n{broken\n', "line 3 of .* is not JSON"),
        ("x.jsonl", "[1]\n", "line 1 of .* is not a JSON object"),
        ("x.json", '{"a": 1}', "not a list of rows"),
        ("x.json", "{", "is not JSON"),
        ("x.txt", "hello", "unknown form"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, name, text, said):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(SourceError, match=said):
        list(read_rows(tmp_path / name))


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(SourceError, match="there is no file"):
        list(read_rows(tmp_path / "x.jsonl"))


def test_the_sum_is_that_of_the_bytes(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert file_sha256(tmp_path / "x") == known


SPACES = b" " * (64 << 20)


def zst(parts):
    zstandard = pytest.importorskip("zstandard")
    return b"".join(map(zstandard.ZstdCompressor().compress, parts))


@pytest.mark.parametrize(("name", "pack"), [("x.jsonl.gz", gzip.compress), ("x.jsonl.zst", None)])
def test_a_line_without_end_is_read_no_further_than_a_row_may_be_long(tmp_path, name, pack):
    if pack is None:
        pytest.importorskip("pyarrow")
        packed = zst([SPACES] * 40)
    else:
        packed = pack(SPACES) * 40
    (tmp_path / name).write_bytes(packed)
    tracemalloc.start()
    with pytest.raises(SourceError, match=r"line 1 of .* is longer than 128 MiB"):
        list(read_rows(tmp_path / name))
    assert tracemalloc.get_traced_memory()[1] < 3 * MAX_ROW_BYTES
    tracemalloc.stop()


@pytest.mark.slow
def test_a_small_file_does_not_unpack_to_many_rows(tmp_path):
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(SPACES + b"\n") * 40)
    with pytest.raises(SourceError, match="unpacks to more than 1 GiB: too much"):
        list(read_rows(tmp_path / "x.jsonl.gz"))


@pytest.mark.parametrize("is_known", [True, False])
def test_a_small_table_does_not_unpack_to_many_rows(tmp_path, is_known):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 4000), pa.array([" " * (1 << 20)]))
    # Whether the file says that the column is a dictionary, and not only has one.
    parquet.write_table(pa.table({"text": texts}), tmp_path / "x.parquet", store_schema=is_known)
    assert (tmp_path / "x.parquet").stat().st_size < 1 << 20
    rows = read_rows(tmp_path / "x.parquet")
    assert sum(1 for _ in islice(rows, 960)) == 960
    with pytest.raises(SourceError, match="unpacks to more than 1 GiB: too much"):
        next(rows)


def test_a_row_with_more_cells_than_the_header_is_not_cut(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("question,answer\nWhat is 4+4?,8,\nWhat is 2, plus 3?,5\n")
    with pytest.raises(SourceError, match=r"row 2 of .* has more cells .* quotation marks"):
        list(read_rows(path))
    path.write_text('question,answer\nWhat is 4+4?,8,\n"What is 2, plus 3?",5\n')
    assert [row["answer"] for row in read_rows(path)] == ["8", "5"]


def test_two_columns_of_one_name_are_not_mixed_up(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("question,answer,answer,,\nWhat is 4+4?,8,9,,\n")
    with pytest.raises(SourceError, match="two columns 'answer'"):
        list(read_rows(path))
