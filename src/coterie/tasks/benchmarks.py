"""The published benchmarks that `hub:NAME` loads: where each lies, its splits, and the mapper of its columns.

A table and no more: `hub` loads, `columns*` map. A revision stands here only where it was found published; the
others are pinned by the first load (`pins`).
"""

from collections.abc import Callable, Mapping

from coterie.tasks import columns, columns_code, columns_rules
from coterie.tasks.columns import Mapper, Row
from coterie.types import record

TRAIN_TEST = {"train": "train", "test": "test"}
TRAIN_VALIDATION = {"train": "train", "test": "validation"}
TRAIN_VALIDATION_TEST = {"train": "train", "validation": "validation", "test": "test"}
ONLY_TEST = {"test": "test"}


@record
class Part:
    """One loadable piece: a repository with a configuration, or the `files` of it that are read as they are.

    `label` is the domain of its items where the rows do not say it. Files end in .json (one object each) or .arrow;
    `{split}` in their pattern stands for the publisher's split.
    """

    repo: str
    config: str | None = None
    label: str = ""
    revision: str | None = None
    files: str = ""


@record
class Benchmark:
    """One benchmark. `splits` maps our split names to the publisher's; `keep` says which rows belong to it.

    No two names mean the same rows, so that what one selects on is never what one judges on. Where the publisher
    keeps the labels of its test split, `test` is its validation split and there is no `validation` here.
    Train and test of one publisher's split are parted by the question's digest, about four to one: such data came
    without a test set. `large` ones are streamed where only the first rows are wanted.
    """

    parts: tuple[Part, ...]
    kind: str
    mapper: Mapper
    licence: str
    splits: Mapping[str, str]
    note: str = ""
    keep: Callable[[Row], bool] = lambda row: True
    expand: Callable[[Row], list[Row]] = lambda row: [row]
    large: bool = False

    @property
    def parted(self) -> bool:
        """Whether one published split is divided into train and test here."""
        return "train" in self.splits and self.splits["train"] == self.splits.get("test")


MATH_SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)
BBH_TASKS = """
boolean_expressions causal_judgement date_understanding disambiguation_qa dyck_languages formal_fallacies
geometric_shapes hyperbaton logical_deduction_five_objects logical_deduction_seven_objects
logical_deduction_three_objects movie_recommendation multistep_arithmetic_two navigate object_counting
penguins_in_a_table reasoning_about_colored_objects ruin_names salient_translation_error_detection snarks
sports_understanding temporal_sequences tracking_shuffled_objects_five_objects
tracking_shuffled_objects_seven_objects tracking_shuffled_objects_three_objects web_of_lies word_sorting
""".split()  # noqa: SIM905 - a list literal would be a page of lines
MMLU_SUBJECTS = """
abstract_algebra anatomy astronomy business_ethics clinical_knowledge college_biology college_chemistry
college_computer_science college_mathematics college_medicine college_physics computer_security
conceptual_physics econometrics electrical_engineering elementary_mathematics formal_logic global_facts
high_school_biology high_school_chemistry high_school_computer_science high_school_european_history
high_school_geography high_school_government_and_politics high_school_macroeconomics high_school_mathematics
high_school_microeconomics high_school_physics high_school_psychology high_school_statistics
high_school_us_history high_school_world_history human_aging human_sexuality international_law jurisprudence
logical_fallacies machine_learning management marketing medical_genetics miscellaneous moral_disputes
moral_scenarios nutrition philosophy prehistory professional_accounting professional_law
professional_medicine professional_psychology public_relations security_studies sociology us_foreign_policy
virology world_religions
""".split()  # noqa: SIM905 - a list literal would be a page of lines
AGIEVAL = {
    "aqua-rat": None,
    "logiqa-en": "e01aa0f040456cd8d58ee9986a58b64e26c1b782",
    "lsat-ar": "052cc636b612f5563329dd182fb6c2cad56681c8",
    "lsat-lr": "d876c675a8d47aa4d8a6d682ca8400b7d2ffe1c4",
    "lsat-rc": None,
    "sat-en": "848ee12cf003124f5a1e33446fa3cc6d2ec028e4",
    "sat-math": "51ab661f5a2e48370671c87c29d037b5b2b4853e",
}
LOGICBENCH = {
    f"{form}-{logic}": f"data/LogicBench(Eval)/{form}/{logic}/*/data_instances.json"
    for form in ("BQA", "MCQA")
    for logic in ("first_order_logic", "nm_logic", "propositional_logic")
}


def _one(repo: str, config: str | None = None, revision: str | None = None) -> tuple[Part, ...]:
    return (Part(repo=repo, config=config, revision=revision),)


def _each(repo: str, configs: tuple[str, ...] | list[str], revision: str | None = None) -> tuple[Part, ...]:
    return tuple(Part(repo=repo, config=config, label=config, revision=revision) for config in configs)


MATHEMATICS: Mapping[str, Benchmark] = {
    "gsm8k": Benchmark(
        parts=_one("openai/gsm8k", "main", "740312add88f781978c0658806c59bc2815b9866"),
        kind="math",
        mapper=columns.gsm8k,
        licence="MIT",
        splits=TRAIN_TEST,
    ),
    "math": Benchmark(
        parts=_each("EleutherAI/hendrycks_math", MATH_SUBJECTS, "21a5633873b6a120296cce3e2df9d5550074f4a3"),
        kind="math",
        mapper=columns.math,
        licence="MIT",
        splits=TRAIN_TEST,
    ),
    "math500": Benchmark(
        parts=_one("HuggingFaceH4/MATH-500", None, "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"),
        kind="math",
        mapper=columns.math500,
        licence="MIT",
        splits=ONLY_TEST,
    ),
    "dapo_math": Benchmark(
        parts=_one("open-r1/DAPO-Math-17k-Processed", "all"),
        kind="math",
        mapper=columns.dapo,
        licence="see the card (DAPO: Apache-2.0)",
        splits={"train": "train", "test": "train"},
        note="English and Chinese; the original repository holds every problem about a hundred times",
    ),
    "olympiadbench": Benchmark(
        parts=_one("Hothan/OlympiadBench", "OE_TO_maths_en_COMP"),
        kind="math",
        mapper=columns.olympiad,
        licence="Apache-2.0",
        splits={"test": "train"},
        note="English open-ended mathematics without pictures",
    ),
    "aime_2025": Benchmark(
        parts=_one("math-ai/aime25", None, "563bb8404243c5f09de6ec262f2db674fe5bce9b"),
        kind="math",
        mapper=columns.aime,
        licence="see the card",
        splits=ONLY_TEST,
    ),
}
CODE: Mapping[str, Benchmark] = {
    "mbpp": Benchmark(
        parts=_one("google-research-datasets/mbpp", "full", "4bb6404fdc6cacfda99d4ac4205087b89d32030c"),
        kind="code_function",
        mapper=columns_code.mbpp,
        licence="CC BY 4.0",
        splits=TRAIN_VALIDATION_TEST,
    ),
    "humaneval": Benchmark(
        parts=_one("openai/openai_humaneval", None, "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544"),
        kind="code_function",
        mapper=columns_code.humaneval,
        licence="MIT",
        splits=ONLY_TEST,
    ),
    "eurus2_code": Benchmark(
        parts=_one("PRIME-RL/Eurus-2-RL-Data", None, "5cbc5bc54c9c8417afd3539fb267422c33b525e6"),
        kind="code_stdio",
        mapper=columns_code.eurus,
        licence="MIT",
        splits=TRAIN_VALIDATION,
        keep=lambda row: row["ability"] == "code",
        note="the coding rows; problems with a function name become kind code_function",
        large=True,
    ),
    "taco": Benchmark(
        parts=(
            Part(repo="BAAI/TACO", files="{split}/*.arrow", revision="31af8a3cb0ec511d56954a67c9853748bffeb7a9"),
        ),
        kind="code_stdio",
        mapper=columns_code.taco,
        licence="Apache-2.0",
        splits=TRAIN_TEST,
        note="read from its files, as its loading script is not run; 2.4 GB",
        large=True,
    ),
    "cruxeval": Benchmark(
        parts=_one("cruxeval-org/cruxeval"),
        kind="qa",
        mapper=columns_code.cruxeval,
        licence="MIT",
        splits=ONLY_TEST,
        note="output prediction",
    ),
}
INSTRUCTIONS: Mapping[str, Benchmark] = {
    "ifeval": Benchmark(
        parts=_one("google/IFEval", None, "966cd89545d6b6acfd7638bc708b98261ca58e84"),
        kind="instruction",
        mapper=columns_rules.ifeval,
        licence="Apache-2.0",
        splits={"test": "train"},
    ),
    "magpie_if": Benchmark(
        parts=_one("argilla/ifeval-like-data", "filtered", "75f739cf2e4ccac6200e3378ce6a41e1a14441fc"),
        kind="instruction",
        mapper=columns_rules.ifeval,
        licence="see the card (Qwen)",
        splits={"train": "train", "test": "train"},
        note="Magpie prompts with IFEval constraints; CERA-MoA does not name its repository",
    ),
    "rlvr_ifeval": Benchmark(
        parts=_one("allenai/RLVR-IFeval"),
        kind="instruction",
        mapper=columns_rules.rlvr,
        licence="ODC-BY",
        splits={"train": "train", "test": "train"},
        note="functions without an equal IFEval rule (around N, own choices, divided paragraphs) are left out",
    ),
}
CHOICES: Mapping[str, Benchmark] = {
    "agieval": Benchmark(
        parts=tuple(
            Part(repo=f"hails/agieval-{name}", label=name, revision=revision) for name, revision in AGIEVAL.items()
        ),
        kind="choice",
        mapper=columns.agieval,
        licence="MIT (AQuA-RAT Apache-2.0, LogiQA see its card)",
        splits=ONLY_TEST,
        note="the English choice tasks",
    ),
    "arc_challenge": Benchmark(
        parts=_one("allenai/ai2_arc", "ARC-Challenge", "210d026faf9955653af8916fad021475a3f00453"),
        kind="choice",
        mapper=columns.arc,
        licence="CC BY-SA 4.0",
        splits=TRAIN_VALIDATION_TEST,
    ),
    "bbh": Benchmark(
        parts=_each("SaylorTwift/bbh", BBH_TASKS, "b5306be6f827cfafbb545ff5a51f96916029b0fd"),
        kind="choice",
        mapper=columns.bbh,
        licence="MIT (its canary asks not to train language models on it)",
        splits={"train": "test", "test": "test"},
        note="tasks without options become kind qa",
    ),
    "gpqa": Benchmark(
        parts=_one("Idavidrein/gpqa", "gpqa_main"),
        kind="choice",
        mapper=columns.gpqa,
        licence="CC BY 4.0; gated, and its authors ask not to publish the questions",
        splits={"test": "train"},
    ),
    "gpqa_diamond": Benchmark(
        parts=_one("Idavidrein/gpqa", "gpqa_diamond"),
        kind="choice",
        mapper=columns.gpqa,
        licence="CC BY 4.0; gated, and its authors ask not to publish the questions",
        splits={"test": "train"},
    ),
    "hellaswag": Benchmark(
        parts=_one("Rowan/hellaswag", None, "218ec52e09a7e7462a5400043bb9a69a41d06b76"),
        kind="choice",
        mapper=columns.hellaswag,
        licence="MIT",
        splits=TRAIN_VALIDATION,
        note="the publisher keeps the labels of its own test split",
    ),
    "logicbench": Benchmark(
        parts=tuple(
            Part(repo="cogint/LogicBench-v1.0", label=label, files=files) for label, files in LOGICBENCH.items()
        ),
        kind="choice",
        mapper=columns.logicbench,
        licence="MIT",
        splits=ONLY_TEST,
        expand=columns.logicbench_rows,
        note="LogicBench(Eval), yes-or-no and four-option questions",
    ),
    "medqa": Benchmark(
        parts=_one("GBaker/MedQA-USMLE-4-options", None, "0fb93dd23a7339b6dcd27e241cb9b5eca62d4d18"),
        kind="choice",
        mapper=columns.medqa,
        licence="CC BY 4.0",
        splits=TRAIN_TEST,
    ),
    "mmlu_formal_logic": Benchmark(
        parts=_one("cais/mmlu", "formal_logic", "c30699e8356da336a370243923dbaf21066bb9fe"),
        kind="choice",
        mapper=columns.mmlu,
        licence="MIT",
        splits={"dev": "dev", "validation": "validation", "test": "test"},
    ),
    "mmlu_pro": Benchmark(
        parts=_one("TIGER-Lab/MMLU-Pro", None, "b189ec765aa7ed75c8acfea42df31fdae71f97be"),
        kind="choice",
        mapper=columns.mmlu_pro,
        licence="MIT",
        splits={"validation": "validation", "test": "test"},
    ),
    "mmlu_redux": Benchmark(
        parts=_each("edinburgh-dawg/mmlu-redux-2.0", MMLU_SUBJECTS, "372ea425445d51e1ba1188c56e5e893f8138621f"),
        kind="choice",
        mapper=columns.mmlu_redux,
        licence="CC BY 4.0",
        splits=ONLY_TEST,
        note="items that its authors marked as faulty are left out and counted",
    ),
}
QUESTIONS: Mapping[str, Benchmark] = {
    "2wikimultihopqa": Benchmark(
        parts=_one("framolfese/2WikiMultihopQA"),
        kind="qa",
        mapper=columns.hotpot,
        licence="Apache-2.0",
        splits=TRAIN_VALIDATION,
        note="a copy in HotpotQA's columns, as the authors' own needs a loading script",
        large=True,
    ),
    "hotpotqa": Benchmark(
        parts=_one("hotpotqa/hotpot_qa", "distractor", "1908d6afbbead072334abe2965f91bd2709910ab"),
        kind="qa",
        mapper=columns.hotpot,
        licence="CC BY-SA 4.0",
        splits=TRAIN_VALIDATION,
        large=True,
    ),
    "newsqa": Benchmark(
        parts=_one("lucadiliello/newsqa"),
        kind="qa",
        mapper=columns.newsqa,
        licence="see the card; the stories are CNN's",
        splits=TRAIN_VALIDATION,
    ),
    "trivia_qa": Benchmark(
        parts=_one("mandarjoshi/trivia_qa", "rc.nocontext", "0f7faf33a3908546c6fd5b73a660e0f8ff173c2f"),
        kind="qa",
        mapper=columns.trivia,
        licence="Apache-2.0 (texts: see the card)",
        splits=TRAIN_VALIDATION,
    ),
}
BENCHMARKS: Mapping[str, Benchmark] = MATHEMATICS | CODE | INSTRUCTIONS | CHOICES | QUESTIONS  # type: ignore[operator]
ABSENT: Mapping[str, str] = {
    "ngqa": "NGQA is not on the hub under columns that could be checked; convert its rows to JSONL of kind qa",
}
"""Benchmarks of the papers that cannot be loaded by name, and why."""
