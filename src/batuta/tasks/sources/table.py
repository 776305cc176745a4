"""The table of sources: licence, splits, files, place on the hub.

SHA256SUMS, beside this file, has the sums of the local files that were read here. The hub's
revisions are commits that public evaluation code pins; a fetch gets exactly that commit or fails.
"""

from __future__ import annotations

from batuta.tasks.sources import choice, code, freeform, maths
from batuta.tasks.sources.rows import Row
from batuta.tasks.sources.source import Hub, Source, Split

_MATH_SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)

_BBH_FAMILIES = (
    "boolean_expressions",
    "causal_judgement",
    "date_understanding",
    "disambiguation_qa",
    "dyck_languages",
    "formal_fallacies",
    "geometric_shapes",
    "hyperbaton",
    "logical_deduction_five_objects",
    "logical_deduction_seven_objects",
    "logical_deduction_three_objects",
    "movie_recommendation",
    "multistep_arithmetic_two",
    "navigate",
    "object_counting",
    "penguins_in_a_table",
    "reasoning_about_colored_objects",
    "ruin_names",
    "salient_translation_error_detection",
    "snarks",
    "sports_understanding",
    "temporal_sequences",
    "tracking_shuffled_objects_five_objects",
    "tracking_shuffled_objects_seven_objects",
    "tracking_shuffled_objects_three_objects",
    "web_of_lies",
    "word_sorting",
)


def _parquet(split: str, *folders: str) -> tuple[str, ...]:
    """The Parquet files of a split on the hub, one in each folder."""
    return tuple(f"{folder}/{split}-00000-of-00001.parquet" for folder in folders)


def _outside_math_500(row: Row) -> bool:
    return not row["in_math500"]


def _of_2024(row: Row) -> bool:
    return str(row["year"]) == "2024"


def _mbpp(name: str) -> Split:
    def keep(row: Row) -> bool:
        return row.get("split", name) == name

    return Split(_parquet(name, "full"), ("bench/mbpp/all.jsonl",), keep)


_LIVE_FILES = ("test.jsonl", *(f"test{number}.jsonl" for number in range(2, 7)))
_LIVE_RELEASES = {f"v{number}": Split(_LIVE_FILES[:number]) for number in range(6, 0, -1)}
"""Each release has the problems of all before it."""

MATHS = (
    Source(
        "math",
        "competition mathematics",
        "MIT by its authors, problems (c) AoPS",
        maths.math,
        {
            "test": Split(_parquet("test", *_MATH_SUBJECTS), ("bench/math/test.jsonl.gz",)),
            "train": Split(_parquet("train", *_MATH_SUBJECTS), ("bench/math/train.jsonl.gz",)),
            "train-12k": Split(
                (), ("bench/math/train.jsonl.gz", "bench/math/test.jsonl.gz"), _outside_math_500
            ),
        },
        Hub("EleutherAI/hendrycks_math", "21a5633873b6a120296cce3e2df9d5550074f4a3"),
    ),
    Source(
        "math-500",
        "500 problems of MATH, as PRM800K chose them",
        "MIT, problems (c) AoPS",
        maths.math_500,
        {"test": Split(("test.jsonl",), ("bench/math500/test.jsonl",))},
        Hub("HuggingFaceH4/MATH-500", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"),
    ),
    Source(
        "aime-2024",
        "American Invitational Mathematics Examination 2024",
        "problems (c) MAA",
        maths.aime(2024),
        {
            "test": Split(
                _parquet("train", "data"),
                ("recorded/matharena_aime25/queries.jsonl.zst",),
                _of_2024,
            )
        },
        Hub("HuggingFaceH4/aime_2024", "2fe88a2f1091d5048c0f36abc874fb997b3dd99a"),
    ),
    Source(
        "aime-2025",
        "American Invitational Mathematics Examination 2025",
        "problems (c) MAA",
        maths.aime(2025),
        {"test": Split(_parquet("train", "data"), ("bench/aime25/test.jsonl",))},
        Hub("MathArena/aime_2025", "c94da77eb22bbd6439e62a323bec18493a421302"),
    ),
    Source(
        "gsm8k",
        "grade-school word problems",
        "MIT",
        maths.gsm8k,
        {
            "test": Split(_parquet("test", "main"), ("bench/gsm8k/test.jsonl",)),
            "train": Split(_parquet("train", "main"), ("bench/gsm8k/train.jsonl.gz",)),
        },
        Hub("openai/gsm8k", "740312add88f781978c0658806c59bc2815b9866"),
        vendor=True,
    ),
    Source(
        "olympiadbench",
        "olympiad mathematics in English with a final answer",
        "Apache-2.0",
        maths.olympiad_bench,
        {
            "test": Split(
                ("OlympiadBench/OE_TO_maths_en_COMP/OE_TO_maths_en_COMP.parquet",),
                ("bench/olympiadbench/test.jsonl",),
            )
        },
        Hub("Hothan/OlympiadBench", "91184b52131e7fc9455fef848035173aea8cc01a"),
        vendor=True,
    ),
    Source(
        "theoremqa",
        "university questions that need a theorem, those with a picture left out",
        "MIT",
        maths.theorem_qa,
        {"test": Split(_parquet("test", "data"), ("bench/theoremqa/test.jsonl",))},
        Hub("TIGER-Lab/TheoremQA", "a340b1782960a712843aae3ed25f1e013cc008a5"),
        vendor=True,
    ),
)

KNOWLEDGE = (
    Source(
        "mmlu",
        "57 subjects, four options; about 6 % of the labels are known to be wrong",
        "MIT",
        choice.mmlu,
        {
            "test": Split(_parquet("test", "all"), ("bench/mmlu/test.jsonl.gz",)),
            "dev": Split(_parquet("dev", "all"), ("bench/mmlu/dev.jsonl",)),
        },
        Hub("cais/mmlu", "c30699e8356da336a370243923dbaf21066bb9fe"),
        vendor=True,
    ),
    Source(
        "mmlu-pro",
        "14 fields, up to ten options",
        "Apache-2.0",
        choice.mmlu_pro,
        {
            "test": Split(_parquet("test", "data"), ("recorded/mmlu_pro/queries.jsonl.zst",)),
            "validation": Split(_parquet("validation", "data")),
        },
        Hub("TIGER-Lab/MMLU-Pro", "b189ec765aa7ed75c8acfea42df31fdae71f97be"),
        vendor=True,
    ),
    Source(
        "gpqa-diamond",
        "graduate science, four options; its text is never shown, logged or stored",
        "CC-BY-4.0, with the request not to show its questions online",
        choice.gpqa,
        {"test": Split((), ("bench/gpqa/gpqa_diamond.csv",))},
        "huggingface.co/datasets/Idavidrein/gpqa, whose terms you accept there",
    ),
    Source(
        "rlpr",
        "short free answers of many fields, for training",
        "see its card on the hub",
        freeform.rlpr,
        {"train": Split(("rlpr_train.parquet",))},
        Hub("openbmb/RLPR-Train-Dataset", "922eeb37157ebce90c1ee8233cdf04f04fbad728"),
    ),
    Source(
        "bbh",
        "BIG-Bench Hard, 27 families",
        "MIT",
        freeform.bbh,
        {"test": Split(_parquet("test", *_BBH_FAMILIES), ("bench/bbh/test.jsonl.gz",))},
        Hub("lukaemon/bbh", "982bb89fd79532a8ac676a61fc42eb1aeec63f99"),
        vendor=True,
    ),
)

PROGRAMS = (
    Source(
        "humaneval",
        "Python functions from their docstring",
        "MIT",
        code.human_eval,
        {"test": Split(_parquet("test", "openai_humaneval"), ("bench/humaneval/test.jsonl",))},
        Hub("openai/openai_humaneval", "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544"),
        vendor=True,
    ),
    Source(
        "mbpp",
        "short Python programs",
        "CC-BY-4.0",
        code.mbpp,
        {name: _mbpp(name) for name in ("test", "train", "validation", "prompt")},
        Hub("google-research-datasets/mbpp", "4bb6404fdc6cacfda99d4ac4205087b89d32030c"),
        vendor=True,
    ),
    Source(
        "bigcodebench",
        "tasks for about 75 Python libraries, with unit tests",
        "Apache-2.0",
        code.big_code_bench,
        {
            "v0.1.4": Split(_parquet("v0.1.4", "data")),
            "v0.1.0": Split((), ("bench/bigcodebench/test.jsonl.gz",)),
        },
        Hub("bigcode/bigcodebench", "b74c0d0bf70d2c0bc459be537895cca163007f1a"),
        vendor=True,
    ),
    Source(
        "bigcodebench-hard",
        "the 148 harder tasks of BigCodeBench",
        "Apache-2.0",
        code.big_code_bench,
        {"v0.1.4": Split(_parquet("v0.1.4", "data"))},
        Hub("bigcode/bigcodebench-hard", "298d2cc7b96612e15e47313c3603ee124cee0c1f"),
        vendor=True,
    ),
    Source(
        "livecodebench",
        "contest problems by release; v1-public has no hidden tests: passing it is not solving",
        "CC; statements (c) LeetCode, AtCoder, Codeforces",
        code.live_code_bench,
        {
            **_LIVE_RELEASES,
            "v1-public": Split((), ("bench/livecodebench_v1_public/test.jsonl",)),
        },
        Hub("livecodebench/code_generation_lite", "0fe84c3912ea0c4d4a78037083943e8f0c4dd505"),
    ),
    Source(
        "leetcode",
        "LeetCodeDataset: v0.3.1 test, v0.2.0 train, split in time at 2024-07-01",
        "MIT; statements (c) LeetCode",
        code.leet_code,
        {
            "test": Split((), ("bench/leetcode/test.jsonl.gz",)),
            "train": Split((), ("bench/leetcode/train.jsonl.gz",)),
        },
        "github.com/newfacade/LeetCodeDataset",
    ),
    Source(
        "cruxeval",
        "what a short Python function returns",
        "MIT",
        code.crux_eval,
        {"test": Split((), ("bench/cruxeval/test.jsonl",))},
        "github.com/facebookresearch/cruxeval",
        vendor=True,
    ),
)

SOURCES = {source.name: source for source in (*MATHS, *KNOWLEDGE, *PROGRAMS)}
