"""The table of data sets: licence, splits, files, and repository on the hub.

SHA256SUMS, beside this file, has the checksums of local files. Each revision is a commit that
public evaluation code pins; a fetch gets that commit or fails, unless another revision is named.
"""

from __future__ import annotations

from batuta.lab.tasks.datasets import coding, maths, short_answers
from batuta.lab.tasks.datasets.dataset import Dataset, DatasetSplit, HubDataset
from batuta.lab.tasks.datasets.rows import Row

_MATH_SUBJECTS = (
    "algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory",
    "prealgebra", "precalculus",
)  # fmt: skip
_BBH_FAMILIES = (
    "boolean_expressions", "causal_judgement", "date_understanding", "disambiguation_qa",
    "dyck_languages", "formal_fallacies", "geometric_shapes", "hyperbaton",
    "logical_deduction_five_objects", "logical_deduction_seven_objects",
    "logical_deduction_three_objects", "movie_recommendation", "multistep_arithmetic_two",
    "navigate", "object_counting", "penguins_in_a_table", "reasoning_about_colored_objects",
    "ruin_names", "salient_translation_error_detection", "snarks", "sports_understanding",
    "temporal_sequences", "tracking_shuffled_objects_five_objects",
    "tracking_shuffled_objects_seven_objects", "tracking_shuffled_objects_three_objects",
    "web_of_lies", "word_sorting",
)  # fmt: skip


def _parquet_files(split: str, *folders: str) -> tuple[str, ...]:
    """Return the Parquet files of a split on the hub, one per folder."""
    return tuple(f"{folder}/{split}-00000-of-00001.parquet" for folder in folders)


_RLPR_FILES = ("rlpr_train.parquet",)
_RLPR_PARTS = 100
"""RLPR has no test split, so one question in this many is held out."""


def _is_held_out_of_rlpr(row: Row) -> bool:
    """Return whether a row is held out; only its question decides."""
    task = short_answers.convert_rlpr(row)
    return task is not None and int(task.id.rpartition("/")[2], 16) % _RLPR_PARTS == 0


def _mbpp_split(name: str) -> DatasetSplit:
    def keep(row: Row) -> bool:
        return row.get("split", name) == name

    return DatasetSplit(_parquet_files(name, "full"), ("bench/mbpp/all.jsonl",), keep)


_LIVE_FILES = ("test.jsonl", *(f"test{number}.jsonl" for number in range(2, 7)))
_LIVE_RELEASES = {f"v{number}": DatasetSplit(_LIVE_FILES[:number]) for number in range(6, 0, -1)}
"""Each release includes the problems of all earlier ones."""

MATHS = (
    Dataset(
        name="math",
        description="competition mathematics",
        licence="MIT by its authors, problems (c) AoPS",
        convert=maths.convert_math,
        splits={
            "test": DatasetSplit(
                _parquet_files("test", *_MATH_SUBJECTS), ("bench/math/test.jsonl.gz",)
            ),
            "train": DatasetSplit(
                _parquet_files("train", *_MATH_SUBJECTS), ("bench/math/train.jsonl.gz",)
            ),
            "train-12k": DatasetSplit(
                (),
                ("bench/math/train.jsonl.gz", "bench/math/test.jsonl.gz"),
                lambda row: not row["in_math500"],
            ),
        },
        origin=HubDataset("EleutherAI/hendrycks_math", "21a5633873b6a120296cce3e2df9d5550074f4a3"),
    ),
    Dataset(
        name="math-500",
        description="500 problems of MATH, as PRM800K chose them",
        licence="MIT, problems (c) AoPS",
        convert=maths.convert_math_500,
        splits={"test": DatasetSplit(("test.jsonl",), ("bench/math500/test.jsonl",))},
        origin=HubDataset("HuggingFaceH4/MATH-500", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"),
    ),
    Dataset(
        name="aime-2024",
        description="American Invitational Mathematics Examination 2024",
        licence="problems (c) MAA",
        convert=maths.aime_converter(2024),
        splits={
            "test": DatasetSplit(
                _parquet_files("train", "data"),
                ("recorded/matharena_aime25/queries.jsonl.zst",),
                lambda row: str(row["year"]) == "2024",
            )
        },
        origin=HubDataset("HuggingFaceH4/aime_2024", "2fe88a2f1091d5048c0f36abc874fb997b3dd99a"),
    ),
    Dataset(
        name="aime-2025",
        description="American Invitational Mathematics Examination 2025",
        licence="problems (c) MAA",
        convert=maths.aime_converter(2025),
        splits={
            "test": DatasetSplit(_parquet_files("train", "data"), ("bench/aime25/test.jsonl",))
        },
        origin=HubDataset("MathArena/aime_2025", "c94da77eb22bbd6439e62a323bec18493a421302"),
    ),
    Dataset(
        name="gsm8k",
        description="grade-school word problems",
        licence="MIT",
        convert=maths.convert_gsm8k,
        splits={
            "test": DatasetSplit(_parquet_files("test", "main"), ("bench/gsm8k/test.jsonl",)),
            "train": DatasetSplit(_parquet_files("train", "main"), ("bench/gsm8k/train.jsonl.gz",)),
        },
        origin=HubDataset("openai/gsm8k", "740312add88f781978c0658806c59bc2815b9866"),
        redistributable=True,
    ),
    Dataset(
        name="olympiadbench",
        description="olympiad mathematics in English with a final answer",
        licence="Apache-2.0",
        convert=maths.convert_olympiad_bench,
        splits={
            "test": DatasetSplit(
                ("OlympiadBench/OE_TO_maths_en_COMP/OE_TO_maths_en_COMP.parquet",),
                ("bench/olympiadbench/test.jsonl",),
            )
        },
        origin=HubDataset("Hothan/OlympiadBench", "91184b52131e7fc9455fef848035173aea8cc01a"),
        redistributable=True,
    ),
    Dataset(
        name="theoremqa",
        description="university questions that need a theorem, without those that have a picture",
        licence="MIT",
        convert=maths.convert_theorem_qa,
        splits={
            "test": DatasetSplit(_parquet_files("test", "data"), ("bench/theoremqa/test.jsonl",))
        },
        origin=HubDataset("TIGER-Lab/TheoremQA", "a340b1782960a712843aae3ed25f1e013cc008a5"),
        redistributable=True,
    ),
)

KNOWLEDGE = (
    Dataset(
        name="mmlu",
        description="57 subjects, four options; about 6 % of the labels are known to be wrong",
        licence="MIT",
        convert=short_answers.convert_mmlu,
        splits={
            "test": DatasetSplit(_parquet_files("test", "all"), ("bench/mmlu/test.jsonl.gz",)),
            "dev": DatasetSplit(_parquet_files("dev", "all"), ("bench/mmlu/dev.jsonl",)),
        },
        origin=HubDataset("cais/mmlu", "c30699e8356da336a370243923dbaf21066bb9fe"),
        redistributable=True,
    ),
    Dataset(
        name="mmlu-pro",
        description="14 fields, up to ten options",
        licence="Apache-2.0",
        convert=short_answers.convert_mmlu_pro,
        splits={
            "test": DatasetSplit(
                _parquet_files("test", "data"), ("recorded/mmlu_pro/queries.jsonl.zst",)
            ),
            "validation": DatasetSplit(_parquet_files("validation", "data")),
        },
        origin=HubDataset("TIGER-Lab/MMLU-Pro", "b189ec765aa7ed75c8acfea42df31fdae71f97be"),
        redistributable=True,
    ),
    Dataset(
        name="gpqa-diamond",
        description="graduate science, four options; its text is never shown, logged or stored",
        licence="CC-BY-4.0, with the request not to show its questions online",
        convert=short_answers.convert_gpqa,
        splits={"test": DatasetSplit((), ("bench/gpqa/gpqa_diamond.csv",))},
        origin="huggingface.co/datasets/Idavidrein/gpqa, whose terms you accept there",
    ),
    Dataset(
        name="rlpr",
        description="short free-form answers in many fields: all, or split into learn and held-out",
        licence="see its card on the hub",
        convert=short_answers.convert_rlpr,
        splits={
            "train": DatasetSplit(_RLPR_FILES),
            "learn": DatasetSplit(_RLPR_FILES, keep=lambda row: not _is_held_out_of_rlpr(row)),
            "held-out": DatasetSplit(_RLPR_FILES, keep=_is_held_out_of_rlpr),
        },
        origin=HubDataset("openbmb/RLPR-Train-Dataset", "922eeb37157ebce90c1ee8233cdf04f04fbad728"),
    ),
    Dataset(
        name="bbh",
        description="BIG-Bench Hard, 27 families",
        licence="MIT",
        convert=short_answers.convert_bbh,
        splits={
            "test": DatasetSplit(
                _parquet_files("test", *_BBH_FAMILIES), ("bench/bbh/test.jsonl.gz",)
            )
        },
        origin=HubDataset("lukaemon/bbh", "982bb89fd79532a8ac676a61fc42eb1aeec63f99"),
        redistributable=True,
    ),
)

_MGSM_LANGUAGES = ("bn", "de", "en", "es", "fr", "ja", "ru", "sw", "te", "th", "zh")

OTHERS = (
    Dataset(
        name="mgsm",
        description="250 word problems of GSM8K in each of eleven languages",
        licence="CC-BY-SA-4.0",
        convert=short_answers.convert_mgsm,
        splits={
            "all": DatasetSplit((), tuple(f"bench/mgsm/mgsm_{one}.tsv" for one in _MGSM_LANGUAGES)),
            **{one: DatasetSplit((), (f"bench/mgsm/mgsm_{one}.tsv",)) for one in _MGSM_LANGUAGES},
        },
        origin="github.com/google-research/url-nlp, folder mgsm",
        redistributable=True,
    ),
    Dataset(
        name="simpleqa",
        description="short factual questions, hard for large models; some need --judge",
        licence="MIT",
        convert=short_answers.convert_simple_qa,
        splits={"test": DatasetSplit((), ("bench/simpleqa/simple_qa_test_set.csv",))},
        origin="github.com/openai/simple-evals, the data that its README names",
        redistributable=True,
    ),
    Dataset(
        name="ifeval",
        description="prompts with format instructions that rules can check",
        licence="Apache-2.0",
        convert=short_answers.convert_if_eval,
        splits={"test": DatasetSplit((), ("bench/ifeval/input_data.jsonl",))},
        origin="github.com/google-research/google-research, instruction_following_eval/data",
        redistributable=True,
    ),
)

PROGRAMS = (
    Dataset(
        name="humaneval",
        description="Python functions from their docstring",
        licence="MIT",
        convert=coding.convert_human_eval,
        splits={
            "test": DatasetSplit(
                _parquet_files("test", "openai_humaneval"), ("bench/humaneval/test.jsonl",)
            )
        },
        origin=HubDataset("openai/openai_humaneval", "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544"),
        redistributable=True,
    ),
    Dataset(
        name="mbpp",
        description="short Python programs",
        licence="CC-BY-4.0",
        convert=coding.convert_mbpp,
        splits={name: _mbpp_split(name) for name in ("test", "train", "validation", "prompt")},
        origin=HubDataset(
            "google-research-datasets/mbpp", "4bb6404fdc6cacfda99d4ac4205087b89d32030c"
        ),
        redistributable=True,
    ),
    Dataset(
        name="bigcodebench",
        description="tasks for Python libraries, with unit tests",
        licence="Apache-2.0",
        convert=coding.convert_big_code_bench,
        splits={
            "v0.1.4": DatasetSplit(_parquet_files("v0.1.4", "data")),
            "v0.1.0": DatasetSplit((), ("bench/bigcodebench/test.jsonl.gz",)),
        },
        origin=HubDataset("bigcode/bigcodebench", "b74c0d0bf70d2c0bc459be537895cca163007f1a"),
        redistributable=True,
    ),
    Dataset(
        name="bigcodebench-hard",
        description="the 148 harder tasks of BigCodeBench",
        licence="Apache-2.0",
        convert=coding.convert_big_code_bench,
        splits={"v0.1.4": DatasetSplit(_parquet_files("v0.1.4", "data"))},
        origin=HubDataset("bigcode/bigcodebench-hard", "298d2cc7b96612e15e47313c3603ee124cee0c1f"),
        redistributable=True,
    ),
    Dataset(
        name="livecodebench",
        description=(
            "contest problems by release; v1-public has no hidden tests: passing it is not solving"
        ),
        licence="CC; statements (c) LeetCode, AtCoder, Codeforces",
        convert=coding.convert_live_code_bench,
        splits={
            **_LIVE_RELEASES,
            "v6-new": DatasetSplit(_LIVE_FILES[5:]),  # the 175 that are not in v5
            "v1-public": DatasetSplit((), ("bench/livecodebench_v1_public/test.jsonl",)),
        },
        origin=HubDataset(
            "livecodebench/code_generation_lite", "0fe84c3912ea0c4d4a78037083943e8f0c4dd505"
        ),
    ),
    Dataset(
        name="leetcode",
        description="LeetCodeDataset: v0.3.1 test, v0.2.0 train, split in time at 2024-07-01",
        licence="MIT; statements (c) LeetCode",
        convert=coding.convert_leet_code,
        splits={
            "test": DatasetSplit((), ("bench/leetcode/test.jsonl.gz",)),
            "train": DatasetSplit((), ("bench/leetcode/train.jsonl.gz",)),
        },
        origin="github.com/newfacade/LeetCodeDataset",
    ),
    Dataset(
        name="cruxeval",
        description="what a short Python function returns",
        licence="MIT",
        convert=coding.convert_crux_eval,
        splits={"test": DatasetSplit((), ("bench/cruxeval/test.jsonl",))},
        origin="github.com/facebookresearch/cruxeval",
        redistributable=True,
    ),
)

DATASETS = {source.name: source for source in (*MATHS, *KNOWLEDGE, *OTHERS, *PROGRAMS)}
