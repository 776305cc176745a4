"""Logs of other programs with scores that are no numbers, byte order marks and large numbers."""

import json
import struct
import tracemalloc
import zipfile
import zlib

import pytest
from typer.testing import CliRunner

from batuta.errors import SourceError
from batuta.lab.commands.tasks import app
from batuta.lab.tasks.datasets.rows import MAX_ROW_BYTES
from batuta.lab.tasks.recorded import read_own_record
from batuta.lab.tasks.recorded.importers import import_outcomes

NAN = float("nan")


def harness(doc_id, score):
    return {
        "doc_id": doc_id,
        "doc": {"question": f"q{doc_id}"},
        "target": "1",
        "arguments": [["q"]],
        "resps": [["1"]],
        "filtered_resps": ["1"],
        "metrics": ["acc"],
        "acc": score,
    }


def write_harness(folder, encoding):
    rows = [harness(0, 1.0), harness(1, NAN), harness(2, 0.0), harness(3, float("inf"))]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "samples_sums.jsonl").write_text(text, encoding=encoding)


def write_inspect(folder, encoding):
    samples = [
        {"id": n, "input": f"q{n}", "scores": {"s": {"value": score}}, "total_time": NAN}
        for n, score in enumerate([1.0, NAN, 0.0, -float("inf")])
    ]
    log = {"eval": {"task": "sums", "model": "m"}, "samples": samples, "results": {"mean": NAN}}
    (folder / "log.json").write_text(json.dumps(log), encoding=encoding)


def write_router_bench(folder, encoding):
    rows = [
        {"sample_id": f"sums/{n}", "prompt": f"q{n}", "m": score, "m|total_cost": NAN}
        for n, score in enumerate([1.0, NAN, 0.0, NAN])
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "table.jsonl").write_text(text, encoding=encoding)


def write_llm_router_bench(folder, encoding):
    records = [
        {"index": n, "origin_query": f"q{n}", "score": score, "cost": NAN}
        for n, score in enumerate([1.0, NAN, 0.0, NAN])
    ]
    data = {"dataset_name": "sums", "split": "test", "model_name": "m", "records": records}
    (folder / "r.json").write_text(json.dumps(data), encoding=encoding)


FORMATS = {
    "lm-eval": write_harness,
    "inspect": write_inspect,
    "routerbench": write_router_bench,
    "llmrouterbench": write_llm_router_bench,
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_row_whose_score_is_no_number_is_named_and_left_out(tmp_path, kind, encoding):
    FORMATS[kind](tmp_path, encoding)
    found = CliRunner().invoke(
        app, ["import", kind, str(tmp_path), "--out", str(tmp_path / "out.jsonl"), "--worker", "m"]
    )
    assert found.exit_code == 0, found.output
    assert "2 runs are left out because their score is NaN or infinite: m on sums/" in found.output
    record = read_own_record(tmp_path / "out.jsonl")
    assert [task.question for task in record.tasks] == ["q0", "q2"]
    assert record.scores_qms.ravel().tolist() == [1.0, 0.0]


def test_a_file_without_one_score_says_which_runs_were_left_out(tmp_path):
    (tmp_path / "samples_sums.jsonl").write_text(json.dumps(harness(7, NAN)) + "\n")
    with pytest.raises(SourceError, match=r"no run with a score: 1 runs .* m on sums/7"):
        import_outcomes("lm-eval", [tmp_path], "m")


def test_a_run_whose_score_is_no_share_is_named(tmp_path):
    rows = [harness(0, 1.0), harness(7, 34.2)]
    (tmp_path / "samples_sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(SourceError) as caught:
        import_outcomes("lm-eval", [tmp_path], "m")
    said = f"the runs of sums/7 in {tmp_path} cannot be used: a score of 34.2 is not in [0, 1]"
    assert str(caught.value) == said


def test_nan_in_a_file_of_outcomes_is_ungraded_or_unknown(tmp_path):
    row = {"question": "q", "workers": {"m": {"scores": [1, NAN], "usd": [NAN, 0.5]}}}
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps(row) + "\n")
    record = read_own_record(path)
    assert str(record.scores_qms.ravel().tolist()) == "[1.0, nan]"
    assert str(record.usage.usd_qms.ravel().tolist()) == "[nan, 0.5]"


@pytest.mark.parametrize(("value", "tokens"), [(10**400, 1), (1, 10**400)])
def test_a_number_larger_than_any_float_is_an_error_with_a_sentence(tmp_path, value, tokens):
    sample = {
        "id": 1, "input": "q", "scores": {"s": {"value": value}},
        "model_usage": {"m": {"input_tokens": tokens, "output_tokens": 1}},
    }  # fmt: skip
    path = tmp_path / "log.json"
    path.write_text(json.dumps({"eval": {"task": "t", "model": "m"}, "samples": [sample]}))
    with pytest.raises(SourceError, match="is not a log"):
        import_outcomes("inspect", [path])


HEADER = json.dumps({"eval": {"task": "t", "model": "m"}})
SAMPLE = json.dumps({"id": 1, "input": "q", "scores": {"s": {"value": 1}}})


def write_archive(path, entries, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method, compresslevel=1) as archive:
        archive.writestr("header.json", HEADER)
        for name, text in entries:
            archive.writestr(name, text)
    return path


def test_a_log_with_a_sample_of_nothing_but_spaces_is_not_unpacked(tmp_path):
    bomb = " " * (MAX_ROW_BYTES + 1)
    path = write_archive(tmp_path / "log.eval", [("samples/1_epoch_1.json", bomb)])
    tracemalloc.start()
    with pytest.raises(SourceError, match=r"samples/1_epoch_1\.json in .* is larger than 128 MiB"):
        import_outcomes("inspect", [path])
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_log_of_many_large_samples_is_not_unpacked(tmp_path):
    entries = [(f"samples/{number}.json", SAMPLE) for number in range(11)]
    path = write_archive(tmp_path / "log.eval", entries)
    assert len(import_outcomes("inspect", [path]).rows()) == 1
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02")
    while at >= 0:
        data[at + 24 : at + 28] = struct.pack("<I", 100 << 20)
        at = data.find(b"PK\x01\x02", at + 1)
    path.write_bytes(data)
    with pytest.raises(SourceError, match="unpacks to more than 1 GiB: too much"):
        import_outcomes("inspect", [path])


def test_a_log_of_very_many_entries_is_refused(tmp_path):
    path = tmp_path / "log.eval"
    one = write_archive(tmp_path / "one.zip", [("x", "")]).read_bytes()
    at = one.index(b"PK\x01\x02", one.index(b"PK\x01\x02") + 1)
    entry, end = one[at : one.index(b"PK\x05\x06")], bytearray(one[one.index(b"PK\x05\x06") :])
    first = one.index(b"PK\x01\x02")
    number, directory = 200_001, one[first:at] + entry * 200_000
    # Of 65,535 entries and more the number stands in a record of its own.
    far = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, number, number, len(directory), first)  # fmt: skip
    where = struct.pack("<4sIQI", b"PK\x06\x07", 0, first + len(directory), 1)
    end[8:20] = struct.pack("<HHII", 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
    path.write_bytes(one[:first] + directory + far + where + end)
    with pytest.raises(SourceError, match="more than 200,000 entries"):
        import_outcomes("inspect", [path])


@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, 93])
def test_a_log_that_says_too_small_a_size_is_read_no_further(tmp_path, kind):
    text = SAMPLE + " " * (8 << 20)
    if kind == zipfile.ZIP_DEFLATED:
        packed = zlib.compress(text.encode(), wbits=-15)
    else:
        pytest.importorskip("pyarrow")
        packed = pytest.importorskip("zstandard").ZstdCompressor().compress(text.encode())
    path = write_archive(tmp_path / "log.eval", [("samples/1.json", packed)], zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02")
    data[at + 10 : at + 12] = struct.pack("<H", kind)
    data[at + 24 : at + 28] = struct.pack("<I", 100)
    local = data.rindex(b"PK\x03\x04")
    data[local + 8 : local + 10] = struct.pack("<H", kind)
    path.write_bytes(data)
    with pytest.raises(SourceError, match="cannot be read"):
        import_outcomes("inspect", [path])
