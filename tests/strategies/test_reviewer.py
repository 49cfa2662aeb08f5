"""Reviewers' replies as they come: what is read of each, and what becomes of what cannot be read."""

import json

import pytest
from mixtures import QUERY, attempts, boxed, calls, reviews, team_of

from coterie.errors import BackendError
from coterie.strategies import prompts
from coterie.strategies.quoting import Quote, tokens
from coterie.strategies.reviewer import BEST, NEUTRAL, read
from coterie.types import Completion

GOOD = '{"reviews": [{"trace": 1, "score": 7, "rationale": "a"}, {"trace": 2, "score": 3, "rationale": "b"}]}'
FINE = {1: 7, 2: 3}
FENCED = "```json\n" + GOOD + "\n```"
ITEMS = '[{"trace": 1, "score": 7, "rationale": "a"}, {"trace": 2, "score": 3, "rationale": "b"}]'
TICKS = GOOD.replace('"a"', '"wrote ```python``` first"')

CORPUS = {
    "as asked": (GOOD, FINE),
    "pretty": (json.dumps(json.loads(GOOD), indent=2), FINE),
    "more space": (f"\n\n  {GOOD}  \n", FINE),
    "fenced": (FENCED, FINE),
    "fenced without language": (FENCED.replace("json", ""), FINE),
    "tilde fence": (FENCED.replace("```", "~~~"), FINE),
    "fence not closed": (FENCED.removesuffix("```"), FINE),
    "fence within a line": (f"Here: ```{GOOD}```", FINE),
    "ticks inside a string (G15)": (TICKS, FINE),
    "ticks inside a string, fenced": (f"```json\n{TICKS}\n```", FINE),
    "prose before": (f"Sure! Here is my review:\n{GOOD}", FINE),
    "prose after": (f"{GOOD}\nI hope this helps.", FINE),
    "prose around": (f"First {GOOD} then done.", FINE),
    "braces in prose": ("I use the set {1, 2} and {x}. " + GOOD, FINE),
    "braces after": (GOOD + " as {above} and }{ too", FINE),
    "brackets in prose": ("See [1] and [a, b]: " + GOOD, FINE),
    "thinking first": ("<think>trace 1 looks {odd}; score?</think>" + GOOD, FINE),
    "echo of the form": (prompts.SHAPE + "\n" + GOOD, FINE),
    "echo of the form in a fence": (f"```\n{prompts.SHAPE}\n```\n{FENCED}", FINE),
    "bare list": (ITEMS, FINE),
    "another name for the list": (GOOD.replace('"reviews"', '"evaluations"'), FINE),
    "nested once more": (f'{{"result": {GOOD}}}', FINE),
    "objects by line": ("\n".join(json.dumps(item) for item in json.loads(ITEMS)), FINE),
    "objects by comma": (ITEMS[1:-1], FINE),
    "by number": ('{"1": {"score": 7, "rationale": "a"}, "2": {"score": 3, "rationale": "b"}}', FINE),
    "by name": ('{"trace 1": {"score": 7}, "trace_2": {"score": 3}}', FINE),
    "plain numbers by trace": ('{"1": 7, "2": 3}', FINE),
    "mapping under reviews": ('{"reviews": {"1": {"score": 7}, "2": {"score": 3}}}', FINE),
    "cut in a rationale": (GOOD[: GOOD.index('"b"') + 2], FINE),
    "cut before the second score": (GOOD[: GOOD.index('"score": 3')], {1: 7}),
    "cut after the first item": (GOOD[: GOOD.index(', {"trace": 2')], {1: 7}),
    "cut in the first item": ('{"reviews": [{"trace": 1, "sco', {}),
    "last brackets missing": (GOOD[:-2], FINE),
    "trailing comma": (GOOD.replace("}]", "},]"), FINE),
    "comma missing": (GOOD.replace("}, {", "} {"), FINE),
    "single quotes": (GOOD.replace('"', "'"), FINE),
    "single quotes, an apostrophe": (GOOD.replace('"', "'").replace("'a'", '"it isn\'t"'), FINE),
    "curly quotes": (GOOD.replace('"', "”"), FINE),
    "keys without quotes": ('{reviews: [{trace: 1, score: 7, rationale: "a"}, {trace: 2, score: 3}]}', FINE),
    "in words": ("Trace 1: score: 7, sound. Trace 2: score: 3, wrong.", FINE),
    "in words, bold": ("**Trace 1**\n**Score**: 7/10\n\n**Trace 2**\n**Score**: 3/10", FINE),
    "a number that is no score (G17)": ("5 reasons speak for trace 1 and 9 against trace 2.", {}),
    "an adjective is no score (G17)": ("Trace 1 is excellent, trace 2 is not excellent.", {}),
    "one too few": ('{"reviews": [{"trace": 2, "score": 3, "rationale": "b"}]}', {2: 3}),
    "one too many": (GOOD.replace("]}", ', {"trace": 3, "score": 9, "rationale": ""}]}'), FINE),
    "unknown numbers only": (GOOD.replace('"trace": 1', '"trace": 8').replace('"trace": 2', '"trace": 9'), {}),
    "a number twice": (GOOD.replace('"trace": 2', '"trace": 1'), {1: 7}),
    "a number twice and the other": (GOOD.replace("[{", '[{"trace": 1, "score": 4}, {'), {1: 4, 2: 3}),
    "no numbers, as many": (GOOD.replace('"trace": 1, ', "").replace('"trace": 2, ', ""), FINE),
    "no numbers, one too few": ('{"reviews": [{"score": 7}]}', {1: 7}),
    "no numbers, one too many": ('{"reviews": [{"score": 7}, {"score": 3}, {"score": 5}]}', {}),
    "numbers from 0": (GOOD.replace('"trace": 1', '"trace": 0').replace('"trace": 2', '"trace": 1'), FINE),
    "other order": (json.dumps({"reviews": json.loads(ITEMS)[::-1]}), FINE),
    "number as text": (GOOD.replace('"trace": 1', '"trace": "1"').replace('"trace": 2', '"trace": "#2"'), FINE),
    "number with a word": (
        GOOD.replace('"trace": 1', '"id": "Trace 1"').replace('"trace": 2', '"id": "t2"'),
        {1: 7},
    ),
    "number as float": (GOOD.replace('"trace": 1', '"trace": 1.0'), FINE),
    "score as text": (GOOD.replace(": 7", ': "7"'), FINE),
    "score as a share": (GOOD.replace(": 7", ': "7/10"').replace(": 3", ': "3 out of 10"'), FINE),
    "score as float": (GOOD.replace(": 7", ": 6.6").replace(": 3", ": 3.0"), FINE),
    "half a score": (GOOD.replace(": 7", ": 6.5").replace(": 3", ": 2.5"), FINE),
    "score above": (GOOD.replace(": 7", ": 15"), {1: 10, 2: 3}),
    "score below": (GOOD.replace(": 3", ": 0"), {1: 7, 2: 1}),
    "score negative": (GOOD.replace(": 3", ": -4"), {1: 7, 2: 1}),
    "score huge": (GOOD.replace(": 7", ": 1" + "0" * 400), {1: 10, 2: 3}),
    "score infinite": (GOOD.replace(": 7", ": 1e999"), {2: 3}),
    "score NaN": (GOOD.replace(": 7", ": NaN"), {2: 3}),
    "score null": (GOOD.replace(": 7", ": null"), {2: 3}),
    "score true": (GOOD.replace(": 7", ": true"), {2: 3}),
    "score in words": (GOOD.replace(": 7", ': "high"'), {2: 3}),
    "score as a list": (GOOD.replace(": 7", ": [7]"), {2: 3}),
    "rationale missing": ('{"reviews": [{"trace": 1, "score": 7}, {"trace": 2, "score": 3}]}', FINE),
    "rationale no text": (GOOD.replace('"a"', "4"), FINE),
    "rationale with a score in it": (GOOD.replace('"a"', '"its score: 2 would be unfair"'), FINE),
    "rationale with braces": (GOOD.replace('"a"', '"uses {x: [1]} well"'), FINE),
    "newline in a string": (GOOD.replace('"a"', '"one\ntwo"'), FINE),
    "unicode": (GOOD.replace('"a"', '"größer als 你好 🌍"'), FINE),
    "half a character": (GOOD.replace('"a"', '"\\ud800"'), FINE),
    "byte order mark": ("\ufeff" + GOOD, FINE),
    "control characters": (GOOD.replace('"a"', '"\x00\x07"'), FINE),
    "empty": ("", {}),
    "blank": (" \n\t", {}),
    "empty object": ("{}", {}),
    "empty list": ('{"reviews": []}', {}),
    "null": ("null", {}),
    "a refusal": ("I cannot review these attempts.", {}),
    "an error page": ("<html><body>502 Bad Gateway</body></html>", {}),
    "nested deep": ("[" * 5000, {}),
    "braces without end": ("{" * 3000 + GOOD[:20], {}),
    "an answer in place of a review": ("The answer is \\boxed{7}.", {}),
    "the prompt's rubric": (prompts.RUBRIC, {}),
}


def scores(reading):
    return {n: min(max(int(said.score + 0.5), 1), 10) for n, said in reading.said.items()}


def test_the_corpus_is_as_nasty_as_it_should_be():
    assert len(CORPUS) >= 60


@pytest.mark.parametrize("name", CORPUS)
def test_a_reply_gives_what_can_be_read_of_it(name):
    """R8, G14, G15, G17: by number, else by order; what cannot be read is missing, never guessed."""
    text, expected = CORPUS[name]
    assert scores(read(text, 2)) == expected


@pytest.mark.parametrize("name", CORPUS)
async def test_a_reply_becomes_the_right_memory(name):
    """What the first reply lacks is asked for once more; what is still missing is neutral (R8)."""
    text, expected = CORPUS[name]
    if name == "no numbers, one too few":
        expected = {1: 7, 2: 7}  # one item, when one was asked for
    team = team_of({"a": boxed("7"), "b": boxed("8"), "reviewer:r": text}, {"use": "rem_moa", "layers": 1})
    trace = await team.solve(QUERY)
    found = {review.turn + 1: review for review in trace.reviews}
    assert {n: r.score for n, r in found.items()} == {n: expected.get(n, NEUTRAL) for n in (1, 2)}
    assert {n for n, r in found.items() if r.mended == "neutral"} == {1, 2} - set(expected)
    assert all(not r.rationale and r.by is None for r in found.values() if r.mended == "neutral")
    asked = calls(team, "r")
    blank = not text.strip()  # a call without a reply has failed, and is not made again here
    assert len(asked) == (1 if blank or len(read(text, 2).said) == 2 else 2)
    assert [call.agent.sampling.temperature for call in asked[1:]] == [0.0] * (len(asked) - 1)
    if len(asked) == 2:
        missing = sorted({1, 2} - set(read(text, 2).said))
        assert f"Review attempts {', '.join(map(str, missing))} only." in asked[1].messages[-1].content
    form = {r.mended for n, r in found.items() if n in read(text, 2).said}
    assert form <= ({""} if read(text, 2).exact else {"form"})


def test_only_the_very_form_is_exact():
    exact = {name for name, (text, _) in CORPUS.items() if read(text, 2).exact}
    braces = {"rationale with a score in it", "rationale with braces", "newline in a string", "unicode"}
    ticks = {"ticks inside a string (G15)", "half a character", "control characters"}
    assert exact == {"as asked", "pretty", "more space", "other order"} | braces | ticks


async def test_what_was_missing_is_taken_from_the_second_reply_and_nothing_else():
    replies = iter(['{"reviews": [{"trace": 2, "score": 8, "rationale": "b"}]}', reviews(4, 1)])
    team = team_of(
        {"a": boxed("7"), "b": boxed("8"), "reviewer:r": lambda *_: next(replies)}, {"use": "rem_moa", "layers": 1}
    )
    trace = await team.solve(QUERY)
    assert [(r.score, r.mended) for r in trace.reviews] == [(4, "again"), (8, "form")]
    assert [r.by for r in trace.reviews] == [3, 2]


async def test_a_failed_reviewer_keeps_the_layer_with_neutral_scores():
    team = team_of(
        {"a": boxed("7"), "b": boxed("8"), "reviewer:r": BackendError("down"), "aggregator:m": boxed("7")},
        {"use": "rem_moa", "layers": 2},
    )
    trace = await team.solve(QUERY)
    assert trace.answer == "7"
    assert [(r.turn, r.layer, r.score, r.mended) for r in trace.reviews] == [
        (0, 1, 5, "neutral"),
        (1, 1, 5, "neutral"),
        (2, 2, 5, "neutral"),
        (3, 2, 5, "neutral"),
    ]
    assert len(calls(team, "r")) == 2  # it failed; asking the same again is the backend's matter, not ours
    assert [failure.agent for failure in trace.failures] == ["r", "r"]


async def test_shuffled_traces_get_their_own_scores():
    """R9: other orders are shown, drawn from the seed, and every trace keeps its score."""

    def by_text(agent, messages, seed):
        return reviews(*(int(body.split("{")[1][0]) for body in attempts(messages).values()))

    replies = {name: boxed(str(n)) for n, name in enumerate("abcde", 3)} | {"reviewer:r": by_text}
    shown = set()
    for seed in range(4):
        team = team_of(replies, {"use": "rem_moa", "layers": 1, "shuffle": True}, seed=seed)
        trace = await team.solve(QUERY)
        assert [r.score for r in trace.reviews] == [3, 4, 5, 6, 7]
        assert [r.rationale for r in trace.reviews] != [f"because {n}" for n in range(1, 6)]
        shown.add(tuple(attempts(calls(team, "r")[0].messages).values()))
    assert len(shown) > 1
    plain = team_of(replies, {"use": "rem_moa", "layers": 1})
    await plain.solve(QUERY)
    assert list(attempts(calls(plain, "r")[0].messages).values()) == [boxed(str(n)) for n in range(3, 8)]


def test_the_reviewer_sees_the_task_and_the_traces_and_no_gold():
    query = QUERY.__class__(
        id="q", messages=QUERY.messages, task="math", contract="boxed", reference={"answer": "secret"}
    )
    messages = prompts.reviewer(query, [Quote(text="one"), Quote(text="two")], 4000)
    text = "".join(message.content for message in messages)
    assert "secret" not in text
    assert "What is 3 + 4?" in text
    assert attempts(messages) == {1: "one", 2: "two"}
    assert str(BEST) in messages[0].content


async def test_a_broken_reviewer_text_is_no_answer():
    """A review is no answer to the query: it is not read as one and never graded as one."""
    said = Completion(text="\\boxed{99}")
    team = team_of({"a": boxed("7"), "b": boxed("7"), "reviewer:r": said}, {"use": "rem_moa", "layers": 1})
    trace = await team.solve(QUERY)
    reviewing = [turn for turn in trace.turns if turn.part == "reviewer"]
    assert len(reviewing) == 2
    assert all(turn.answer is None and not turn.answers for turn in reviewing)


# --- the schema that a call brings -------------------------------------------------------------------


def held_to(call):
    """The items that a call's schema asks for, by trace number: the longest rationale."""
    listed = json.loads(call.agent.sampling.schema)["properties"]["reviews"]
    assert listed["minItems"] == listed["maxItems"] == len(listed["prefixItems"])
    items = [item["properties"] for item in listed["prefixItems"]]
    return {item["trace"]["enum"][0]: item["rationale"]["maxLength"] for item in items}


async def test_a_review_is_asked_for_with_its_schema_and_what_is_missing_with_its_own():
    """R8: backends that hold the model to it need no repair; the ladder is there for all others, and counted."""
    replies = {"a": boxed("7"), "b": boxed("8"), "c": boxed("9")}
    judge = iter([reviews(5), reviews(5, 6, 7)])
    team = team_of(replies | {"reviewer:r": lambda *_: next(judge)}, {"use": "rem_moa", "layers": 1})
    trace = await team.solve(QUERY)
    first, again = calls(team, "r")
    assert (list(held_to(first)), list(held_to(again))) == ([1, 2, 3], [2, 3])
    assert again.agent.sampling.temperature == 0
    assert [review.mended for review in trace.reviews] == ["form", "again", "again"]
    assert [turn.revision for turn in trace.turns if turn.part == "reviewer"] == [
        f"{trace.revisions['r']}+schema", f"{trace.revisions['r']}+t0+schema"
    ]  # fmt: skip
    others = [call for name in "abc" for call in calls(team, name)]
    assert not any(call.agent.sampling.schema for call in others)


@pytest.mark.parametrize(
    ("settings", "reply"),
    [
        ({"use": "rem_moa", "layers": 1}, reviews(5, 6)),
        ({"use": "smoa", "layers": 1}, '{"keep": [1], "settled": false}'),
        ({"use": "rank_and_fuse"}, '{"better": 1}'),
    ],
)
async def test_schemas_can_be_switched_off(settings, reply):
    """The prompt is the same either way: its words are for backends that constrain nothing."""
    asked = []
    for schemas in (True, False):
        team = team_of({"a": boxed("7"), "b": boxed("8"), "reviewer:r": reply}, settings | {"schemas": schemas})
        await team.solve(QUERY)
        asked.append(calls(team, "r"))
    assert all(json.loads(call.agent.sampling.schema)["additionalProperties"] is False for call in asked[0])
    assert not any(call.agent.sampling.schema for call in asked[1])
    assert [call.messages for call in asked[0]] == [call.messages for call in asked[1]]
    assert [call.seed for call in asked[0]] == [call.seed for call in asked[1]]


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("limit", [48, 160, 512, 8192])
def test_the_longest_review_that_fits_the_schema_fits_max_tokens(count, limit):
    """A character takes a token at most (ASCII), the rest of the reply about what `tokens` says."""
    schema = json.loads(prompts.review_schema(range(1, count + 1), limit))
    longest = schema["properties"]["reviews"]["items"]["properties"]["rationale"]["maxLength"]
    rest = tokens(reviews(*[BEST] * count, rationale="")) - count
    assert prompts.LEAST_RATIONALE <= longest <= prompts.MOST_RATIONALE
    assert rest + count * longest <= limit or longest == prompts.LEAST_RATIONALE


def test_moderators_pick_no_more_than_there_are():
    schema = json.loads(prompts.moderation_schema(2, 5))["properties"]["keep"]
    assert (schema["maxItems"], schema["items"]["maximum"]) == (2, 2)
