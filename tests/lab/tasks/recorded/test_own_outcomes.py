"""One's own recorded answers: the file of outcomes, and other programs' results made into one."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from batuta.errors import SourceError
from batuta.lab.commands.tasks import app
from batuta.lab.learners.history import history_from_record, read_history
from batuta.lab.tasks.recorded import load_recorded, read_own_record
from batuta.lab.tasks.recorded.importers import FORMATS, import_outcomes
from batuta.lab.tasks.recorded.outcome_lines import read_outcome_lines, write_outcome_rows

FIXTURES = Path(__file__).parents[1] / "fixtures" / "outcomes"


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def asked(question, **workers):
    return {"question": question, "workers": workers}


class TestRecord:
    def test_every_field_is_read(self, tmp_path):
        row = {
            "id": "q1",
            "question": "6*7?",
            "family": "times",
            "target": "42",
            "workers": {
                "big": {
                    "scores": [1, None],
                    "answers": ["42", None],
                    "replies": ["It is 42.", "Hm."],
                    "usd": [0.01, None],
                    "input_tokens": 7,
                    "output_tokens": [3, 4],
                    "seconds": 1.5,
                },
                "small": {"score": 0.5, "runs": 4},
            },
        }
        record = read_own_record(write(tmp_path / "o.jsonl", row))
        assert (record.models, record.families) == (("big", "small"), ("times",))
        assert (record.tasks[0].id, record.tasks[0].target) == ("q1", "42")
        np.testing.assert_array_equal(record.scores_qms, [[[1, np.nan], [0.5, np.nan]]])
        assert record.answer((0, 0, 0)) == "42" and record.answer((0, 1, 0)) is None
        assert record.reply((0, 0, 1)) == "Hm."
        assert record.usage.input_qms.tolist() == [[[7, 7], [-1, -1]]]
        assert record.usage.output_qms.tolist() == [[[3, 4], [-1, -1]]]
        np.testing.assert_array_equal(record.usage.usd_qms[0, 0], [0.01, np.nan])
        assert read_history(tmp_path / "o.jsonl").runs_qm.tolist() == [[1, 4]]

    def test_answers_are_read_from_replies_that_do_not_tell_them(self, tmp_path):
        path = write(
            tmp_path / "o.jsonl",
            asked("2+2?", a={"scores": [1], "replies": ["So the answer is **4**."]},
                  b={"scores": [1], "replies": ["\\boxed{4}"]}),
        )  # fmt: skip
        record, history = read_own_record(path), read_history(path)
        assert record.answers == ("4",) and history.answers == (("4", "4"),)

    def test_without_answers_there_is_nothing_to_vote_with(self, tmp_path):
        record = read_own_record(write(tmp_path / "o.jsonl", asked("q", a={"score": 1})))
        assert record.answers_qms is None and record.usage is None

    def test_questions_that_not_all_answered_are_left_out_and_counted(self, tmp_path):
        path = str(
            write(
                tmp_path / "o.jsonl",
                asked("one", a={"score": 1}, b={"score": 0}),
                asked("two", a={"score": 1}),
                asked("three", a={"score": 1}, b={"scores": [None]}),
            )
        )
        record = load_recorded(path)
        assert [task.question for task in record.tasks] == ["one"] and record.incomplete == 2
        assert len(load_recorded(path, models=["a"]).tasks) == 3
        with pytest.raises(SourceError, match="no model 'c'"):
            load_recorded(path, models=["c"])

    def test_nothing_in_common_is_told(self, tmp_path):
        path = write(tmp_path / "o.jsonl", asked("x", a={"score": 1}), asked("y", b={"score": 1}))
        with pytest.raises(SourceError, match="no question that all of a, b answered"):
            load_recorded(str(path))

    def test_a_changed_file_is_another_record(self, tmp_path):
        path = write(tmp_path / "o.jsonl", asked("x", a={"score": 1}))
        first = read_own_record(path)
        write(path, asked("x", a={"score": 0}))
        assert first.version and read_own_record(path).version != first.version

    def test_equal_questions_and_ids_stay_apart(self, tmp_path):
        path = write(tmp_path / "o.jsonl", *[asked("x", a={"score": s}) for s in (1, 0)])
        ids = [task.id for task in read_own_record(path).tasks]
        assert len(set(ids)) == 2

    @given(
        scores=st.lists(
            st.lists(st.none() | st.floats(0, 1, width=32), min_size=1, max_size=3), min_size=1
        )
    )
    @settings(max_examples=settings().max_examples * 50 // 100, deadline=None)
    def test_a_record_and_a_history_say_the_same(self, scores, tmp_path_factory):
        path = tmp_path_factory.mktemp("own") / "o.jsonl"
        rows = [
            asked(f"q{n}", a={"scores": own, "answers": [f"{n}"] * len(own)})
            for n, own in enumerate(scores)
        ]
        write(path, *rows)
        record, history = history_from_record(read_own_record(path)), read_history(path)
        np.testing.assert_allclose(record.scores_qm, history.scores_qm)
        np.testing.assert_array_equal(record.samples.credit_qms, history.samples.credit_qms)
        assert record.answers == history.answers


def test_equal_words_that_earned_differently_are_graded_apart(tmp_path):
    """Two workers end a conversation with the same words; only one of them did what it should."""
    said = {"replies": ["You are welcome."]}
    workers = {"careful": {**said, "scores": [1.0]}, "rash": {**said, "scores": [0.0]}}
    path = tmp_path / "outcomes.jsonl"
    write(path, {"question": "Cancel it.", "workers": workers})
    record = read_own_record(path)
    (task,) = record.tasks
    replies = [record.reply((0, m, 0)) for m in range(2)]
    assert [record.grade(task, reply).score for reply in replies] == [1.0, 0.0]
    assert all(reply.endswith("You are welcome.") for reply in replies)
    write(path, {"question": "Cancel it.", "workers": {**workers, "rash": workers["careful"]}})
    record = read_own_record(path)
    assert record.reply((0, 0, 0)) == record.reply((0, 1, 0)) == "You are welcome."


ROUTERBENCH = {
    "sample_id": "mmlu.1",
    "prompt": "['Which?']",
    "eval_name": "mmlu",
    "gpt|model_response": "['B']",
    "gpt|total_cost": 0.002,
    "gpt": 1.0,
    "llama|model_response": "['C']",
    "llama|total_cost": 0.0001,
    "llama": "0.0",
}


def llmrouterbench(model, score, **more):
    run = {"index": 3, "origin_query": "6*7?", "prompt": "Q: 6*7?", "ground_truth": "42"}
    run |= {"score": score, "prediction": "42", "raw_output": ["It is 42"], "cost": 0.01}
    run |= {"prompt_tokens": 5, "completion_tokens": 6}
    about = {"dataset_name": "aime", "split": "test", "model_name": model, "records": [run]}
    return {**about, **more}


def harness(doc_id, **more):
    row = {
        "doc_id": doc_id,
        "doc": {"question": "How many?"},
        "target": "18",
        "arguments": {"gen_args_0": {"arg_0": "Q: How many? A:", "arg_1": {}}},
        "resps": [["So #### 18"]],
        "filtered_resps": ["18"],
        "filter": "strict-match",
        "metrics": ["exact_match"],
        "exact_match": 1.0,
    }
    return {**row, **more}


class TestImporters:
    def test_routerbench(self, tmp_path):
        path = write(tmp_path / "r.jsonl", ROUTERBENCH)
        (row,) = import_outcomes("routerbench", [path]).rows()
        assert (row["id"], row["question"], row["family"]) == ("mmlu.1", "Which?", "mmlu")
        assert row["workers"]["gpt"] == {"scores": [1.0], "replies": ["B"], "usd": [0.002]}
        assert row["workers"]["llama"]["scores"] == [0.0]

    def test_a_pickle_is_never_opened(self, tmp_path):
        path = tmp_path / "routerbench_0shot.pkl"
        marker = tmp_path / "ran"
        path.write_bytes(b"cos\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR.")
        with pytest.raises(SourceError, match="can run programs when it is read"):
            import_outcomes("routerbench", [path])
        assert not marker.exists()

    def test_llmrouterbench_takes_the_latest_file_and_no_trial(self, tmp_path):
        for name, run in {
            "aime-20250101_000000.json": llmrouterbench("m", 0.0),
            "aime-20250102_000000.json": llmrouterbench("m", 1.0),
            "aime-20250103_000000.json": llmrouterbench("m", 0.5, demo=True),
            "other.json": llmrouterbench("n", 1),
        }.items():
            (tmp_path / name).write_text(json.dumps(run))
        (row,) = import_outcomes("llmrouterbench", [tmp_path]).rows()
        assert (row["id"], row["question"], row["target"]) == ("aime/test/3", "6*7?", "42")
        assert row["workers"]["m"]["scores"] == [1.0] and set(row["workers"]) == {"m", "n"}
        assert row["workers"]["n"]["replies"] == ["It is 42"]
        assert row["workers"]["n"]["input_tokens"] == [5]

    @pytest.mark.parametrize("ending", ["eval", "json"])
    def test_inspect_logs_as_inspect_wrote_them(self, ending):
        """Both were written by inspect_ai 0.3.285; the archive is compressed with zstd."""
        rows = import_outcomes("inspect", [FIXTURES / f"sums.{ending}"]).rows()
        assert [row["id"] for row in rows] == ["sums/a", "sums/b"]
        first, second = (row["workers"]["mockllm/model"] for row in rows)
        assert first["scores"] == [1, 1] and second["scores"] == [0, 0]
        assert second["answers"] == ["Answer: 7", "Answer: 9"]
        assert first["input_tokens"] == [4, 4] and first["output_tokens"] == [9, 9]

    def test_lm_eval_samples(self, tmp_path):
        folder = tmp_path / "qwen__qwen-7b"
        folder.mkdir()
        write(
            folder / "samples_gsm8k_2025-08-03T12-36-20.123456.jsonl",
            harness(0),
            harness(0, filter="flexible-extract", exact_match=0.0),
            harness(1, filtered_resps=["[invalid]"], exact_match=0.0),
        )
        write(folder / "results_2025-08-03.jsonl", {"not": "samples"})
        rows = import_outcomes("lm-eval", [tmp_path]).rows()
        assert [(row["id"], row["question"]) for row in rows] == [
            ("gsm8k/0", "How many?"), ("gsm8k/1", "How many?"),
        ]  # fmt: skip
        first, second = (row["workers"]["qwen__qwen-7b"] for row in rows)
        assert first == {"scores": [1.0], "answers": ["18"], "replies": ["So #### 18"]}
        assert second["scores"] == [0.0] and "answers" not in second

    def test_lm_eval_likelihoods_name_the_likeliest_option(self, tmp_path):
        row = harness(
            0,
            doc={},
            resps=[[["-3.0", "False"]], [["-1.0", "True"]]],
            filtered_resps=[["-3.0", "False"], ["-1.0", "True"]],
            metrics=["acc", "acc_norm"],
            acc=1,
        )
        write(tmp_path / "samples_arc.jsonl", row)
        (found,) = import_outcomes("lm-eval", [tmp_path], "mine").rows()
        assert found["workers"]["mine"] == {"scores": [1.0], "answers": ["1"]}
        assert found["question"] == "Q: How many? A:"

    @pytest.mark.parametrize("kind", FORMATS)
    @given(data=st.data())
    @settings(max_examples=settings().max_examples * 60 // 100, deadline=None)
    def test_a_strange_file_is_refused_in_a_sentence(self, kind, data, tmp_path_factory):
        leaf = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
        keys = ["records", "prompt", "m|total_cost", "m", "samples", "id", "input", "eval"]
        keys += ["doc_id", "arguments", "resps", "filtered_resps", "index", "score", "scores"]
        tree = st.recursive(
            leaf,
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(keys), inner, max_size=6)
            ),
            max_leaves=12,
        )
        folder = tmp_path_factory.mktemp("strange")
        for ending in FORMATS[kind].endings:
            if ending != ".parquet":
                (folder / f"samples_x{ending}").write_text(json.dumps(data.draw(tree)))
        for path in sorted(folder.iterdir()):
            try:
                write_outcome_rows(import_outcomes(kind, [path]).rows(), folder / "out.jsonl")
                read_outcome_lines(folder / "out.jsonl")
            except SourceError as refused:
                assert str(refused)

    def test_two_models_meet_at_a_question_by_its_id(self, tmp_path):
        for model, prompt in (("a", "How many?"), ("b", "How many now?")):
            write(tmp_path / f"{model}.jsonl")
            (tmp_path / model).mkdir()
            write(tmp_path / model / "samples_t.jsonl", harness(0, doc={"question": prompt}))
        found = import_outcomes("lm-eval", [tmp_path])
        assert len(found.rows()) == 1 and found.differing == 1


class TestCommand:
    def test_imported_and_measured(self, tmp_path, command_line):
        rows = [
            {**ROUTERBENCH, "sample_id": f"{kind}.{n}", "eval_name": kind, "prompt": f"{kind} {n}?",
             "gpt": float(n % 3 > 0), "llama": float(n % 2)}
            for kind in ("mmlu", "arc", "gsm") for n in range(20)
        ]  # fmt: skip
        source = write(tmp_path / "bench.jsonl", *rows)
        out = tmp_path / "outcomes.jsonl"
        done = CliRunner().invoke(app, ["import", "routerbench", str(source), "--out", str(out)])
        assert done.exit_code == 0 and "60 questions, 2 workers" in done.output, done.output
        assert "Licence: see the card" in done.output
        command = ["eval", "--tasks", f"recorded:{out}", "--json"]
        command += ["--systems", "best-single,knn,vote", "--out", str(tmp_path / "eval")]
        measured = command_line.run(*command, cwd=tmp_path, env=os.environ)
        assert measured.returncode == 0, measured.stderr
        report = json.loads(measured.stdout)
        assert report["recorded"] and report["systems"]["best-single"]["usd"] == pytest.approx(
            0.002
        )

    def test_an_unknown_format_is_told_with_the_known_ones(self, tmp_path):
        with pytest.raises(SourceError, match="choose among: routerbench"):
            import_outcomes("chess", [tmp_path])
        with pytest.raises(SourceError, match="there is no file"):
            import_outcomes("inspect", [tmp_path / "none"])
        with pytest.raises(SourceError, match="has no runs in the format of"):
            import_outcomes("lm-eval", [tmp_path])
