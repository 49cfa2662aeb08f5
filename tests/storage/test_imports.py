"""Rows that people have become outcome tables: what each form means, what is missing, and what goes out again."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from coterie.errors import DataError
from coterie.storage import exports
from coterie.storage.imports import import_rows
from coterie.storage.tablefile import Recorded, read_table, save_table
from coterie.storage.tables import to_outcomes
from coterie.tasks.contamination import question_and_options
from coterie.types import Completion, Failure, Message, Price, Query, Routing, Score, Trace, Turn


def jsonl(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def routed(query="1 + 1?", model="small", **changes):
    """A row of LLMRouter's routing data."""
    row = {
        "task_name": "gsm8k",
        "query": query,
        "ground_truth": "2",
        "metric": "GSM8K",
        "choices": None,
        "task_id": None,
        "model_name": model,
        "response": "It is 2.",
        "token_num": 30,
        "input_tokens": 20,
        "output_tokens": 10,
        "response_time": 1.5,
        "api_key_used": "",
        "performance": 1.0,
        "embedding_id": 3,
        "user_id": None,
        "fig_id": None,
    }
    return {key: value for key, value in {**row, **changes}.items() if value is not ...}


def cell(found, query=0, agent=0):
    table = found.table
    parts = (table.scores, table.prompt_tokens, table.completion_tokens, table.costs)
    return [None if np.isnan(part[query, agent]) else float(part[query, agent]) for part in parts]


# --- LLMRouter ----------------------------------------------------------------------------------------


def test_routing_rows_become_a_table_that_reads_back(tmp_path):
    rows = [routed(model="small", performance=0.5), routed(model="large"), routed("2 + 2?", model="large")]
    found = import_rows(
        "llmrouter", [jsonl(tmp_path / "rows.jsonl", *rows)], prices={"large": Price(prompt=1, completion=2)}
    )
    assert found.table.agents == ("small", "large")
    assert cell(found) == [0.5, 20, 10, None]
    assert np.isnan(found.table.scores[1, 0])
    save_table(tmp_path / "table", found.table)
    back = read_table(tmp_path / "table")
    assert np.array_equal(back.scores, found.table.scores, equal_nan=True)
    assert back.items == found.table.items
    assert back.items[0].answer == "2"
    outcomes = to_outcomes(back)
    assert outcomes.costs[0, 1] == pytest.approx((20 * 1 + 10 * 2) / 1e6)
    assert np.isnan(outcomes.costs[0, 0])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"response": "ERROR: connection reset", "response_time": 0, "performance": 0.0}, "failed call"),
        ({"response": "ERROR: 429", "response_time": 0.0, "performance": 0.0}, "failed call"),
        ({"response": "", "response_time": 0, "performance": 0.0}, "failed call"),
        ({"response": None, "response_time": 0, "performance": 0.0}, "failed call"),
        ({"response": "ERROR: gone", "response_time": ..., "performance": 0.0}, "failed call"),
        ({"performance": None}, "no score"),
    ],
)
def test_an_outage_is_missing_and_counted_never_zero(tmp_path, changes, reason):
    """R23: one of five calls fails; its label must be missing."""
    rows = [routed(f"{n}?") for n in range(4)] + [routed("last?", **changes)]
    found = import_rows("llmrouter", [jsonl(tmp_path / "rows.jsonl", *rows)])
    assert dict(found.missing) == {("small", reason): 1}
    assert cell(found, 4) == [None, None, None, None]
    assert to_outcomes(found.table).means() == {"small": 1.0}
    assert f"missing: small: 1 × {reason}" in found.lines()


@pytest.mark.parametrize(
    "changes",
    [
        {"response": "ERROR is the name of the film.", "response_time": 2.1, "performance": 0.0},
        {"response": "ERROR is the name of the film.", "response_time": ..., "performance": 1.0},
        {"response": "no", "response_time": 0, "performance": 0.0},
        {"response": "", "response_time": 3.0, "performance": 0.0},
        {"response": "ERRORS are human", "response_time": 0, "performance": 0.0},
    ],
)
def test_an_answer_that_was_given_keeps_its_score(tmp_path, changes):
    """R23 the other way: a real answer may begin with ERROR, and a wrong one is 0."""
    found = import_rows("llmrouter", [jsonl(tmp_path / "rows.jsonl", routed(**changes))])
    assert cell(found)[0] == changes["performance"]
    assert dict(found.missing) == {}


def test_older_rows_have_other_names_and_a_sum_of_tokens(tmp_path):
    row = routed(ground_truth=..., input_tokens=..., output_tokens=..., gt="2")
    found = import_rows("llmrouter", [jsonl(tmp_path / "rows.jsonl", row)])
    assert cell(found) == [1.0, None, 30, None]
    assert found.table.items[0].answer == "2"
    table = import_rows(
        "llmrouter", [tmp_path / "rows.jsonl"], prices={"small": Price(prompt=1, completion=2)}
    ).table
    assert to_outcomes(table).tokens[0, 0] == 30
    assert np.isnan(to_outcomes(table).costs[0, 0])


def test_options_are_part_of_the_query(tmp_path):
    listed = [json.dumps({"text": texts, "labels": ["A", "B"]}) for texts in (["x", "y"], ["x", "z"])]
    found = import_rows("llmrouter", [jsonl(tmp_path / "rows.jsonl", *(routed(choices=text) for text in listed))])
    assert [item.choices for item in found.table.items] == [("x", "y"), ("x", "z")]


def test_a_query_answered_twice_is_averaged_and_counted(tmp_path):
    found = import_rows("llmrouter", [jsonl(tmp_path / "a.jsonl", routed(), routed(performance=0.0))])
    assert cell(found)[0] == 0.5
    assert found.repeated == 1
    assert "averaged: 1 outcomes" in found.lines()[-1]


def test_the_same_rows_as_table_and_as_parquet(tmp_path):
    import pyarrow
    from pyarrow import parquet

    rows = [routed(), routed(model="large", performance=None, response_time=None)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    (tmp_path / "rows.json").write_text(json.dumps(rows).replace('"performance": null', '"performance": NaN'))
    tables = [import_rows("llmrouter", [tmp_path / f"rows.{end}"]) for end in ("parquet", "csv", "json")]
    for found in tables:
        assert dict(found.missing) == {("large", "no score"): 1}
        assert cell(found) == [1.0, 20, 10, None]
        assert found.table.items == tables[0].table.items


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"performance": 85}, ":1: performance 85 is not within 0 and 1"),
        ({"performance": "good"}, ":1: performance 'good' is not a number"),
        ({"performance": ...}, ":1: there is no column 'performance' (it has "),
        ({"query": " "}, ":1: 'query' is empty"),
        ({"input_tokens": -1}, ":1: input_tokens -1 is not a count or an amount"),
        ({"choices": "{"}, ":1: choices are not JSON"),
    ],
)
def test_a_row_of_another_form_is_named_with_file_and_line(tmp_path, changes, said):
    with pytest.raises(DataError) as error:
        import_rows("llmrouter", [jsonl(tmp_path / "rows.jsonl", routed(**changes))])
    assert f"rows.jsonl{said}" in str(error.value)


def test_files_that_hold_nothing_are_errors(tmp_path):
    with pytest.raises(DataError, match=r"rows\.jsonl: holds no row"):
        import_rows("llmrouter", [jsonl(tmp_path / "rows.jsonl")])
    with pytest.raises(DataError, match=r"rows\.pkl: unknown kind of file"):
        import_rows("llmrouter", [tmp_path / "rows.pkl"])
    with pytest.raises(DataError, match=r"none\.jsonl: cannot be read"):
        import_rows("llmrouter", [tmp_path / "none.jsonl"])
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"rows\.parquet: cannot be read"):
        import_rows("llmrouter", [tmp_path / "rows.parquet"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no"):
        import_rows("llmrouter", [tmp_path / "empty"])


def test_a_price_of_nobody_is_an_error(tmp_path):
    with pytest.raises(DataError, match="prices: no row is of agent 'smal'"):
        import_rows("llmrouter", [jsonl(tmp_path / "rows.jsonl", routed())], prices={"smal": Price(prompt=1)})


# --- LLMRouterBench -----------------------------------------------------------------------------------


def bench(folder, model, *records, stamp="20250101_000000", **beside):
    """A result file at the place and in the form that LLMRouterBench has."""
    place = folder / "results" / "bench" / "aime" / "test" / model
    place.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "index": n,
            "origin_query": f"Question {n}?",
            "prompt": f"Solve: Question {n}?",
            "raw_output": "So 2.",
            **record,
        }
        for n, record in enumerate(records, 1)
    ]
    path = place / f"aime-test-{model}-{stamp}.json"
    path.write_text(json.dumps({"performance": 0.5, "counts": len(rows), **beside, "records": rows}))
    return path


RECORD = {
    "prediction": "2",
    "ground_truth": "2",
    "score": 1.0,
    "prompt_tokens": 15,
    "completion_tokens": 5,
    "cost": 0.0001,
}
FAILED = {
    "prediction": "",
    "raw_output": "",
    "ground_truth": "2",
    "score": 0.0,
    "prompt_tokens": 0,
    "completion_tokens": 0,
    "cost": 0,
}


def test_a_folder_of_result_files_is_one_table(tmp_path):
    bench(tmp_path, "gpt-5", RECORD, RECORD | {"score": 0.0})
    bench(tmp_path, "qwen3", RECORD | {"score": None}, FAILED)
    found = import_rows("llmrouterbench", [tmp_path])
    assert found.table.agents == ("gpt-5", "qwen3")
    assert {item.dataset for item in found.table.items} == {"aime"}
    assert cell(found) == [1.0, 15, 5, 0.0001]
    assert cell(found, 1) == [0.0, 15, 5, 0.0001]
    assert dict(found.missing) == {("qwen3", "no score"): 1, ("qwen3", "failed call"): 1}


def test_names_in_the_file_come_before_those_of_its_folders(tmp_path):
    path = bench(tmp_path, "m", RECORD, model_name="real", dataset_name="AIME")
    found = import_rows("llmrouterbench", [path])
    assert (found.table.agents, found.table.items[0].dataset) == (("real",), "AIME")


def test_of_several_runs_of_a_model_the_newest_counts(tmp_path):
    bench(tmp_path, "m", RECORD | {"score": 0.0}, stamp="20250102_000000")
    bench(tmp_path, "m", RECORD, stamp="20250103_000000")
    found = import_rows("llmrouterbench", [tmp_path])
    assert (cell(found)[0], found.repeated) == (1.0, 0)


def test_a_demonstration_and_a_file_of_another_form_are_refused(tmp_path):
    with pytest.raises(DataError, match="is a demonstration run of a few rows"):
        import_rows("llmrouterbench", [bench(tmp_path, "m", RECORD, demo=True)])
    (tmp_path / "x.json").write_text('{"performance": 1}')
    with pytest.raises(DataError, match=r"x\.json: expected a list of objects, or one under records, data, rows"):
        import_rows("llmrouterbench", [tmp_path / "x.json"])


# --- RouterArena --------------------------------------------------------------------------------------


def arena(index="AIME_1", model="gpt-4o-mini", **changes):
    used = {"input_tokens": 40, "output_tokens": 9, "total_tokens": 49}
    result = {"generated_answer": "B", "success": True, "token_usage": used, "provider": "x", "error": None}
    row = {"global index": index, "prompt": f"Prompt of {index}", "prediction": model, "generated_result": result}
    return {**row, "cost": 0.00002, "accuracy": 1.0, **changes}


def test_predictions_become_outcomes_of_the_models_that_were_chosen(tmp_path):
    failed = {"generated_answer": "", "success": False, "token_usage": {}}
    rows = [
        arena(),
        arena("AIME_2", accuracy=None),
        arena("ArcMMLU_7", "claude", generated_result=failed, accuracy=0.0),
        {**arena("ArcMMLU_8", "claude", generated_result=None, accuracy=None, cost=None)},
        arena("AIME_1", "claude", for_optimality=True, accuracy=0.0),
    ]
    rows[1]["global_index"] = rows[1].pop("global index")
    (tmp_path / "router.json").write_text(json.dumps(rows))
    found = import_rows("routerarena", [tmp_path / "router.json"])
    assert [item.id for item in found.table.items] == ["AIME_1", "AIME_2", "ArcMMLU_7", "ArcMMLU_8"]
    assert [item.dataset for item in found.table.items] == ["AIME", "AIME", "ArcMMLU", "ArcMMLU"]
    assert cell(found) == [1.0, 40, 9, 0.00002]
    assert cell(found, 0, 1)[0] == 0.0
    assert dict(found.missing) == {
        ("gpt-4o-mini", "no score"): 1,
        ("claude", "failed call"): 1,
        ("claude", "not run"): 1,
    }


def test_one_index_with_two_prompts_is_an_error(tmp_path):
    (tmp_path / "router.json").write_text(json.dumps([arena(), arena(prompt="Another")]))
    with pytest.raises(DataError, match="query 'AIME_1' has two different texts"):
        import_rows("routerarena", [tmp_path / "router.json"])


# --- one's own log ------------------------------------------------------------------------------------


def test_a_log_of_ones_own(tmp_path):
    text = "query,agent,score,tokens,cost,dataset\n1?,a,1,20,0.1,d\n1?,b,,,,d\n2?,a,0,,,d\n"
    (tmp_path / "log.csv").write_text(text)
    found = import_rows("log", [tmp_path / "log.csv"])
    assert cell(found) == [1.0, None, 20, 0.1]
    assert cell(found, 1) == [0.0, None, None, None]
    assert dict(found.missing) == {("b", "no score"): 1}
    rows = [{"query": "1?", "agent": "a", "score": True, "prompt_tokens": 7, "completion_tokens": 3}]
    assert cell(import_rows("log", [jsonl(tmp_path / "log.jsonl", *rows)])) == [1.0, 7, 3, None]


@pytest.mark.parametrize(
    ("row", "prompt", "completion", "tokens"),
    [
        ({"tokens": 30}, None, 30, 30),
        ({"tokens": 30, "completion_tokens": 10}, 20, 10, 30),
        ({"tokens": 30, "prompt_tokens": 20}, 20, 10, 30),
        ({"prompt_tokens": 20}, 20, None, 20),
        ({"completion_tokens": 10}, None, None, None),
        ({}, None, None, None),
    ],
)
def test_a_count_that_is_not_stated_is_not_zero(tmp_path, row, prompt, completion, tokens):
    given = {"query": "1?", "agent": "a", "score": 1, **row}
    found = import_rows("log", [jsonl(tmp_path / "log.jsonl", given)])
    assert cell(found)[1:3] == [prompt, completion]
    used = to_outcomes(found.table).tokens[0, 0]
    assert (None if np.isnan(used) else used) == tokens


def test_a_total_below_one_of_its_parts_is_an_error(tmp_path):
    row = {"query": "1?", "agent": "a", "score": 1, "tokens": 3, "completion_tokens": 4}
    with pytest.raises(DataError, match=r"log\.jsonl:1: 3 tokens in all are fewer than those of a part"):
        import_rows("log", [jsonl(tmp_path / "log.jsonl", row)])


def test_a_total_and_two_counts_are_averaged_as_totals(tmp_path):
    """30 in all and 20 + 20 are 35 in all; the parts are not known."""
    row = {"query": "1?", "agent": "a", "score": 1}
    rows = [row | {"tokens": 30}, row | {"prompt_tokens": 20, "completion_tokens": 20}]
    assert cell(import_rows("log", [jsonl(tmp_path / "log.jsonl", *rows)])) == [1.0, None, 35, None]


def test_a_total_goes_out_as_a_total(tmp_path):
    table = import_rows(
        "log", [jsonl(tmp_path / "log.jsonl", {"query": "1?", "agent": "a", "score": 1, "tokens": 30})]
    ).table
    rows = exports.arena_of_table(table, "a")
    assert rows[0]["generated_result"]["token_usage"]["output_tokens"] is None
    (tmp_path / "p.json").write_text(json.dumps(rows))
    assert cell(import_rows("routerarena", [tmp_path / "p.json"]))[1:3] == [None, 30]


def test_columns_of_a_log_are_known_named_or_left_out(tmp_path):
    (tmp_path / "log.csv").write_text("prompt,agent,scor,when\n1?,a,1,now\n")
    with pytest.raises(DataError, match=r"log\.csv:2: unknown column 'prompt'.*--column score=prompt"):
        import_rows("log", [tmp_path / "log.csv"])
    given = {"columns": {"query": "prompt", "score": "scor"}, "ignore": ("when",)}
    assert cell(import_rows("log", [tmp_path / "log.csv"], **given))[0] == 1.0
    with pytest.raises(DataError, match="unknown column 'scores' of a log; did you mean 'score'"):
        import_rows("log", [tmp_path / "log.csv"], columns={"scores": "scor"})
    with pytest.raises(DataError, match="there is no column 'score'"):
        import_rows("log", [jsonl(tmp_path / "log.jsonl", {"query": "1?", "agent": "a"})])
    with pytest.raises(DataError, match="llmrouter has columns of its own"):
        import_rows("llmrouter", [tmp_path / "log.csv"], ignore=("when",))


# --- out again ----------------------------------------------------------------------------------------


def turn(index, agent, score, tokens=(20, 5), text="2"):
    completion = Completion(text=text, prompt_tokens=tokens[0], completion_tokens=tokens[1])
    verdict = None if score is None else Score(verdict="pass" if score == 1 else "fail", value=score)
    asked = (Message(role="user", content="1 + 1?"),)
    return Turn(
        index=index, agent=agent, role="solver", revision=f"r-{agent}", messages=asked, completion=completion,
        answer="2", cost=0.001, score=verdict,
    )  # fmt: skip


def trace(name, *turns, final=0, sample=0):
    asked = (Message(role="user", content=f"{name}?"),)
    query = Query(
        id=name,
        messages=asked,
        task="math",
        contract="boxed",
        reference={"answer": "2"},
        metadata={"source": "s", "domain": "d"},
    )
    score = None if final is None else turns[final].score
    return Trace(
        query=query, sample=sample, turns=turns, routings=(Routing(weights={"a": 1.0}),), final=final, score=score
    )


def test_a_run_is_a_table_with_prompt_and_completion_tokens_apart():
    traces = [
        trace("one", turn(0, "a", 1.0), turn(1, "b", 0.0, tokens=(30, 7))),
        trace("one", turn(0, "a", 0.0, tokens=(20, 15)), sample=1),
        trace("two", turn(0, "a", None)),
    ]
    prices = {"b": Recorded(agent="b", price=Price(prompt=1, completion=2))}
    found = exports.table_of(traces, prices, asked=question_and_options)
    assert dict(found.missing) == {("a", "no score"): 1, ("b", "not run"): 1}
    assert found.table.models == (Recorded(agent="a"), prices["b"])
    table = found.table
    assert table.agents == ("a", "b")
    assert table.scores[0].tolist() == [0.5, 0.0]
    assert table.prompt_tokens[0].tolist() == [20, 30]
    assert table.completion_tokens[0].tolist() == [10, 7]
    assert np.isnan(table.scores[1]).all()
    assert (table.items[0].dataset, table.items[0].category, table.items[0].answer) == ("s", "d", "2")


def test_a_run_without_verdicts_is_an_error():
    with pytest.raises(DataError, match="no answer of this run has a verdict"):
        exports.table_of([trace("one", turn(0, "a", None))], asked=question_and_options)


def test_a_failed_call_leaves_an_empty_cell_that_is_counted():
    """R23: a call that failed has no turn; an agent that only failed is counted as well."""
    lost = [Failure(agent=name, kind="BackendError", message="gone") for name in ("a", "c")]
    traces = [
        replace(trace("one", turn(0, "b", 1.0)), failures=(*lost,)),
        replace(trace("two", turn(0, "a", 1.0)), failures=(lost[0], lost[1])),
        replace(trace("three", final=None), failures=(lost[1],)),
    ]
    found = exports.table_of(traces, asked=question_and_options)
    assert found.table.agents == ("a", "b")
    assert dict(found.missing) == {
        ("a", "failed call"): 1,
        ("a", "not run"): 1,
        ("b", "not run"): 2,
        ("c", "failed call"): 3,
    }


def test_a_run_as_predictions_reads_back(tmp_path):
    rows = exports.arena_of_traces(
        [trace("AIME_1", turn(0, "a", 1.0), turn(1, "b", 0.0), final=1), trace("AIME_2", final=None)]
    )
    assert rows[0] == {
        "global index": "AIME_1",
        "prompt": "AIME_1?",
        "prediction": "b",
        "generated_result": {
            "generated_answer": "2",
            "success": True,
            "token_usage": {"input_tokens": 20, "output_tokens": 5},
        },
        "cost": 0.002,
        "accuracy": 0.0,
    }
    assert (rows[1]["prediction"], rows[1]["generated_result"], rows[1]["accuracy"]) == ("", None, None)
    (tmp_path / "p.json").write_text(json.dumps(rows[:1]))
    assert cell(import_rows("routerarena", [tmp_path / "p.json"])) == [0.0, 20, 5, 0.002]


def test_a_table_as_predictions_has_the_others_for_optimality(tmp_path):
    (tmp_path / "router.json").write_text(json.dumps([arena(), arena(model="claude", accuracy=0.0)]))
    table = import_rows("routerarena", [tmp_path / "router.json"]).table
    rows = exports.arena_of_table(table, "claude")
    assert [(row["prediction"], row.get("for_optimality", False)) for row in rows] == [
        ("claude", False),
        ("gpt-4o-mini", True),
    ]
    assert rows[0]["prompt"] == "Prompt of AIME_1"
    with pytest.raises(DataError, match="has no agent 'gemini'"):
        exports.arena_of_table(table, "gemini")


# --- what cannot be computed with or written again ----------------------------------------------------

HUGE = int("1" * 400)
BOTTOMLESS = "[" * 100_000 + "]" * 100_000
LOGGED = {"query": "q", "agent": "a", "score": 1}
ARENA = {"global index": "x_1", "prompt": "q", "prediction": "a", "accuracy": 1, "cost": 1}


@pytest.mark.parametrize("changes", [{"score": HUGE}, {"cost": HUGE}, {"tokens": HUGE}, {"cost": 1e12}])
@pytest.mark.parametrize("suffix", ["jsonl", "csv", "json"])
def test_a_number_that_cannot_be_summed_is_named_by_file_and_line(tmp_path, changes, suffix):
    """A number of 400 digits is beyond floats; 1e12 dollars a call make sums that are."""
    row, path = {**LOGGED, **changes}, tmp_path / f"log.{suffix}"
    texts = {
        "jsonl": json.dumps(row),
        "json": json.dumps([row]),
        "csv": "\n".join(",".join(map(str, part)) for part in (row, row.values())),
    }
    path.write_text(texts[suffix], encoding="utf-8")
    with pytest.raises(DataError, match=rf"log\.{suffix}:( row )?\d: {next(iter(changes))} ") as caught:
        import_rows("log", [path])
    assert len(str(caught.value).replace(str(path), "")) < 200


@pytest.mark.parametrize("used", [[1, 2], "many", 7])
def test_token_usage_that_is_no_object_is_refused(tmp_path, used):
    path = jsonl(tmp_path / "p.jsonl", {**ARENA, "generated_result": {"success": True, "token_usage": used}})
    with pytest.raises(DataError, match=r"p\.jsonl:1: token_usage must be an object"):
        import_rows("routerarena", [path])


@pytest.mark.parametrize("name", ["choices", "answer"])
@pytest.mark.parametrize("depth", [150, 900, 100_000])
def test_a_value_nested_too_deep_is_named_by_file_and_line(tmp_path, name, depth):
    path = tmp_path / "log.jsonl"
    row = json.dumps(LOGGED)[:-1] + f', "{name}": {"[" * depth}{"]" * depth}}}'
    path.write_text(row, encoding="utf-8")
    with pytest.raises(DataError, match=r"log\.jsonl:1: "):
        import_rows("log", [path])


def test_choices_in_a_cell_are_read_as_strictly(tmp_path):
    for text, says in ((BOTTOMLESS, "not JSON"), ('["\\ud800"]', "half of a character")):
        path = tmp_path / "log.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([[*LOGGED, "choices"], [*LOGGED.values(), text]])
        with pytest.raises(DataError, match=rf"log\.csv:2: choices .*{says}"):
            import_rows("log", [path])


@pytest.mark.parametrize("name", ["query", "agent", "choices", "answer", "id"])
@pytest.mark.parametrize("suffix", ["jsonl", "json"])
def test_half_a_character_is_named_by_file_and_line(tmp_path, name, suffix):
    value = ["a\ud800"] if name == "choices" else "a\ud800"
    rows = [LOGGED, {**LOGGED, name: value}]
    path = tmp_path / f"log.{suffix}"
    path.write_text(json.dumps(rows) if suffix == "json" else "\n".join(map(json.dumps, rows)), encoding="utf-8")
    with pytest.raises(DataError, match=rf"log\.{suffix}:( row )?2: .*half of a character"):
        import_rows("log", [path])


def test_two_halves_are_a_character(tmp_path):
    found = import_rows("log", [jsonl(tmp_path / "log.jsonl", {**LOGGED, "query": "a \U0001f600"})])
    assert found.table.items[0].question == "a \U0001f600"


def test_a_column_to_ignore_must_be_in_some_file(tmp_path):
    """Also where a table has no row; of several files one is enough."""
    (tmp_path / "a.csv").write_text("query,agent,score\n", encoding="utf-8")
    with pytest.raises(DataError, match="there is no column 'nope'"):
        import_rows("log", [tmp_path / "a.csv"], ignore=("nope",))
    with pytest.raises(DataError, match="there is no column 'nope'"):
        import_rows("log", [tmp_path / "a.csv"], columns={"cost": "nope"})
    with pytest.raises(DataError, match=r"a\.csv: holds no row"):
        import_rows("log", [tmp_path / "a.csv"])
    two = [jsonl(tmp_path / "b.jsonl", LOGGED), jsonl(tmp_path / "c.jsonl", {**LOGGED, "agent": "b", "when": 1})]
    assert import_rows("log", two, ignore=("when",)).rows == 2
