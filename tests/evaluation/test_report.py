"""The page, read as a browser reads it: it parses, loads nothing, tells the truth, and keeps hostile text inert."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from urllib.parse import quote

import pytest
from samples import RECIPES, query, routing, sample_run, turn, voted

from coterie.evaluation import drilldown, metrics, report
from coterie.evaluation.drilldown import CAPS, embedded, script_json
from coterie.evaluation.report import RunView, page, write_report
from coterie.evaluation.sheet import Card, Sheet
from coterie.evaluation.table import COLUMNS
from coterie.types import Failure, Message, Score

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">\u2028<!--<script>&amp;{{style}}"
VOID = {"meta", "link", "img", "br", "input", "hr", "rect", "line", "path", "circle"}


class Page(HTMLParser):
    """Elements with their attributes and text, and whether every element is closed in order."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.misnested = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append({"tag": tag, "text": "", **dict(attrs)})
        if tag not in VOID:
            self.open.append((tag, self.elements[-1]))

    def handle_startendtag(self, tag, attrs):
        self.elements.append({"tag": tag, "text": "", **dict(attrs)})

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        if not self.open or self.open[-1][0] != tag:
            self.misnested.append(tag)
            return
        self.open.pop()

    def handle_data(self, data):
        for _, element in self.open:
            element["text"] += data

    def of(self, tag, css=None):
        found = [e for e in self.elements if e["tag"] == tag]
        return [e for e in found if css is None or css in (e.get("class") or "").split()]


def view(traces=None, **parts):
    defaults = {"name": "run", "task": "sample", "baseline": "best-single", "traces": traces or sample_run()}
    return RunView(**{**defaults, **parts})


def data_of(parsed, number=0):
    (found,) = [e for e in parsed.elements if e.get("id") == f"data-{number}"]
    assert found["type"] == "application/json"
    return json.loads(found["text"])


def hostile_run():
    """Hostile text wherever text of others can get in."""
    asked = replace(
        query(0),
        id=HOSTILE,
        messages=(Message(role="user", content=HOSTILE),),
        metadata={"domain": HOSTILE, "note": HOSTILE},
        reference={"answer": HOSTILE},
    )
    score = Score(verdict="fail", value=0.0, answer=HOSTILE, reason=HOSTILE)
    said = replace(turn(query(0), "careful", 0), agent=HOSTILE, messages=asked.messages)
    said = replace(said, completion=replace(said.completion, text=HOSTILE), answer=HOSTILE, score=score)
    decision = replace(routing(query(0)), weights={HOSTILE: 1.0}, scores={HOSTILE: 0.4}, info={HOSTILE: HOSTILE})
    failure = Failure(agent=HOSTILE, kind=HOSTILE, message=HOSTILE)
    trace = replace(voted(asked, [said], replace(decision)), score=score, failures=(failure,))
    return RunView(name=HOSTILE, task=HOSTILE, baseline=HOSTILE, traces={HOSTILE: [trace]}, config=HOSTILE)


@pytest.fixture(scope="module")
def parsed():
    return Page(page([view(config="recipe: vote\n")]))


def test_the_page_is_well_formed(parsed):
    assert not parsed.misnested
    assert not parsed.open
    assert len(parsed.of("h1")) == 1
    assert [e["lang"] for e in parsed.of("html")] == ["en"]


def test_the_page_asks_nothing_of_any_network(parsed):
    links = [e[key] for e in parsed.elements for key in ("src", "href", "action", "srcset", "data") if e.get(key)]
    assert all(link.startswith(("#", "data:")) for link in links)
    style = "".join(e["text"] for e in parsed.of("style"))
    assert "url(" not in style
    assert "@import" not in style
    script = parsed.of("script")[-1]["text"]
    assert not re.search(r"fetch\(|XMLHttpRequest|WebSocket|EventSource|import\(|eval\(", script)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", script)


def test_the_policy_allows_this_script_and_no_other(parsed):
    (policy,) = [e["content"] for e in parsed.of("meta") if e.get("http-equiv") == "Content-Security-Policy"]
    digest = base64.b64encode(hashlib.sha256(parsed.of("script")[-1]["text"].encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy
    assert not [key for e in parsed.elements for key in e if key.startswith("on")]


def test_the_table_holds_the_numbers_of_the_rows(parsed):
    expected = metrics.rows(sample_run(), "best-single")
    shown = [e for e in parsed.elements if e["tag"] in ("td", "th") and "data-value" in e]
    assert len(shown) == len(expected) * len(COLUMNS)
    for i, row in enumerate(expected):
        cells = shown[i * len(COLUMNS) : (i + 1) * len(COLUMNS)]
        for column, cell in zip(COLUMNS, cells, strict=True):
            value = column.value(row)
            exact = type(value)(cell["data-value"]) if value is not None else cell["data-value"]
            assert exact == ("" if value is None else value), column.title
            assert column.text(row) in cell["text"]


def test_unknown_numbers_sort_as_unknown():
    unpriced = [replace(t, turns=tuple(replace(u, cost=None) for u in t.turns)) for t in sample_run(8)["random"]]
    text = page([view({"best-single": [], "random": unpriced})])
    assert "$ / 1k" not in text
    assert "nan" not in [e.get("data-value") for e in Page(text).elements]


def test_every_turn_is_embedded_with_its_text(parsed):
    traces = sample_run()
    data = data_of(parsed)
    assert data["recipes"] == list(RECIPES)
    assert len(data["queries"]) == 60
    for name, found in zip(data["recipes"], data["traces"], strict=True):
        for trace, kept in zip(traces[name], found, strict=True):
            assert data["queries"][kept["q"]]["id"] == trace.query.id
            assert kept["outcome"] == metrics.outcome(trace)
            assert kept["final"] == trace.final
            assert [data["texts"][t["text"]] for t in kept["turns"]] == [t.completion.text for t in trace.turns]
            sent = [[data["texts"][ref] for _, ref in t["sent"]] for t in kept["turns"]]
            assert sent == [[m.content for m in t.messages] for t in trace.turns]


def test_routings_and_failures_are_embedded(parsed):
    data = data_of(parsed)
    first = data["traces"][0][0]["routings"][0]
    known = {data["texts"][agent]: (weight, score) for agent, weight, score, _ in first["weights"]}
    truth = sample_run()["familiarity-vote"][0].routings[0]
    assert {a: weight for a, (weight, _) in known.items()} == pytest.approx(dict(truth.weights), 1e-4)
    assert {a: score for a, (_, score) in known.items()} == pytest.approx(dict(truth.scores), 1e-4)
    down = data["traces"][data["recipes"].index("cheapest")][7]
    assert [data["texts"][ref] for ref in down["failures"][0]] == ["quick", "Overloaded", "503 after 4 tries"]


def test_equal_texts_are_embedded_once(parsed):
    texts = [t for t in data_of(parsed)["texts"] if isinstance(t, str)]
    assert len(texts) == len(set(texts))


def test_hostile_text_is_inert_everywhere():
    text = page([hostile_run()])
    parsed = Page(text)
    assert not parsed.misnested
    assert not parsed.of("img")
    assert len(parsed.of("script")) == 2
    assert not [key for e in parsed.elements for key in e if key.startswith("on")]
    assert "\u2028" not in script_json(HOSTILE)
    assert HOSTILE in data_of(parsed)["texts"]
    assert [e["text"] for e in parsed.of("h1")] == [HOSTILE]
    assert json.loads(script_json({HOSTILE: [HOSTILE, "\ud800", "é"]})) == {HOSTILE: [HOSTILE, "\ud800", "é"]}


def test_text_that_no_file_can_hold_is_written(tmp_path):
    """A lone surrogate and a zero byte come from real tokenisers."""
    asked = replace(query(0), metadata={"domain": "bad \ud800 \x00"})
    said = turn(query(0), "careful", 0)
    said = replace(said, completion=replace(said.completion, text="x\udfff\x00y"))
    write_report(tmp_path / "r.html", [view({"best-single": [voted(asked, [said], routing(query(0)))]})])
    parsed = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "x\udfff\x00y" in data_of(parsed)["texts"]


def test_long_text_is_cut_with_a_mark_that_text_can_not_forge():
    long = "a" * 30_000 + "END"
    said = turn(query(0), "careful", 0)
    said = replace(said, completion=replace(said.completion, text=long))
    traces = {"r": [voted(query(0), [said], routing(query(0)))]}
    assert long in embedded(traces)["texts"]
    data = embedded(traces, budget=10_000)
    (cut,) = [t for t in data["texts"] if not isinstance(t, str)]
    head, missing, tail = cut
    assert data["cap"] == 8_000
    assert len(head) + missing + len(tail) == len(long)
    assert len(head) + len(tail) == 8_000
    assert long.startswith(head)
    assert tail.endswith("END")
    assert embedded(traces, budget=1)["cap"] == CAPS[-1]


def test_a_large_pool_shows_its_heaviest_agents_and_counts_the_rest():
    wide = replace(routing(query(0)), weights={f"a{i}": i / 499500 for i in range(1000)}, scores={})
    trace = replace(voted(query(0), [turn(query(0), "careful", 0)], routing(query(0))), routings=(wide,))
    data = embedded({"r": [trace]})
    (kept,) = data["traces"][0][0]["routings"]
    assert len(kept["weights"]) == drilldown.SHOWN_WEIGHTS
    assert kept["more"] == 1000 - drilldown.SHOWN_WEIGHTS
    assert data["texts"][kept["weights"][0][0]] == "a999"
    assert kept["weights"][0][2] is None


def test_a_large_run_stays_a_file_that_opens():
    """10 recipes x 500 queries x 5 turns of 1,200 characters, all different: more than one file may hold."""
    base = [turn(query(0), "careful", i) for i in range(5)]
    traces = {}
    for recipe in range(10):
        traces[f"r{recipe}"] = [
            replace(voted(query(q), base, routing(query(0))), turns=tuple(filled(t, recipe, q) for t in base))
            for q in range(500)
        ]
    data = embedded(traces)
    kept = sum(len(t) if isinstance(t, str) else len(t[0]) + len(t[2]) for t in data["texts"])
    assert kept <= drilldown.BUDGET
    assert len(script_json(data)) < 48_000_000


def filled(said, recipe, q):
    text = f"{recipe} {q} {said.index} " + "word " * 240
    return replace(said, completion=replace(said.completion, text=text))


def test_several_runs_have_tabs_and_their_own_data():
    parsed = Page(page([view(name="first"), view(sample_run(12), name="second", baseline=None)]))
    (tabs,) = parsed.of("nav")
    assert "first" in tabs["text"]
    assert "second" in tabs["text"]
    assert [len(data_of(parsed, i)["queries"]) for i in (0, 1)] == [60, 12]
    ids = [e["id"] for e in parsed.elements if "id" in e]
    assert len(ids) == len(set(ids))


def test_the_agents_and_heat_figures_count_right(parsed):
    words = [e["title"] for e in parsed.of("td") if e.get("title")]
    traces = sample_run()["familiarity-vote"]
    cell = next(c for c in metrics.crossing(traces) if (c.domain, c.agent) == ("code", "coder"))
    assert any(
        w.startswith(f"coder on code: asked in {cell.asked} of {cell.queries} queries")
        and f"right in {cell.right} of {cell.scored} turns" in w
        for w in words
    )
    alone = sum(len(metrics.asked(t)) == 2 for t in traces) / len(traces)
    assert f"2 agents: {100 * alone:.1f} % of the queries" in [e.get("title") for e in parsed.of("span")]


def test_equal_runs_give_equal_pages():
    assert page([view(sample_run(12))]) == page([view(sample_run(12))])


def test_runs_without_traces_or_baseline_still_make_a_page():
    for traces in ({}, {"r": []}, {"r": sample_run(4)["random"]}):
        parsed = Page(page([RunView(name="n", task="t", baseline="absent", traces=traces)]))
        assert not parsed.misnested
    assert not Page(page([])).misnested


def test_a_failed_write_leaves_the_old_page(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "report.html"
    write_report(path, [view(sample_run(4))])
    before = path.read_text(encoding="utf-8")
    monkeypatch.setattr(report, "_table", lambda rows, baseline: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report(path, [view(sample_run(8))])
    assert path.read_text(encoding="utf-8") == before
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def browsed(url, folder):
    """The page's elements after its script has run."""
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    flags += " --disable-component-update --disable-sync --virtual-time-budget=4000 --dump-dom"
    command = [CHROMIUM, *flags.split(), f"--user-data-dir={folder}", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_browser_shows_every_turn_of_a_query(tmp_path):
    path = tmp_path / "report.html"
    write_report(path, [view()])
    parsed = Page(browsed(f"file://{path}#run=0&query=logic-006&recipe=debate", tmp_path / "profile"))
    (trace,) = [t for t in sample_run()["debate"] if t.query.id == "logic-006"]
    (detail,) = parsed.of("div", "detail")
    assert len(parsed.of("div", "step")) == len(trace.turns) + len(trace.routings)
    assert all(t.completion.text in detail["text"] for t in trace.turns)
    assert "settled the answer" in detail["text"]
    assert len(parsed.of("ol", "queries")) == 1
    assert "60 of 60 queries" in "".join(e["text"] for e in parsed.of("p", "found"))


DRIVE = """
const out = {}, pick = (css, value, kind) => {
  const node = document.querySelector(css);
  node.value = value;
  node.dispatchEvent(new Event(kind || "change"));
};
const names = () => [...document.querySelectorAll(".headline tbody tr")].map((row) => row.dataset.recipe);
const found = () => document.querySelector(".found").textContent;
const head = document.querySelectorAll(".headline thead button")[1];
head.click(); out.down = names();
head.click(); out.up = names();
pick(".f-domain", "code"); out.domain = found();
pick(".f-domain", ""); pick(".f-recipe", "3"); pick(".f-outcome", "error"); out.errors = found();
document.querySelector(".queries button").click();
pick(".f-recipe", ""); pick(".f-outcome", "split"); out.split = found();
pick(".f-outcome", ""); pick(".f-search", "LOGIC-006", "input");
setTimeout(() => {
  out.search = found();
  out.detail = document.querySelector(".detail h3").textContent;
  document.body.append(Object.assign(document.createElement("output"), { textContent: JSON.stringify(out) }));
}, 500);
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_sorting_filtering_and_search_in_a_browser(tmp_path):
    path = tmp_path / "report.html"
    write_report(path, [view()])
    text = re.sub(r"<meta http-equiv[^>]*>", "", path.read_text(encoding="utf-8"))
    path.write_text(text.replace("</body>", f"<script>{DRIVE}</script></body>"), encoding="utf-8")
    (output,) = Page(browsed(f"file://{path}", tmp_path / "profile")).of("output")
    seen = json.loads(output["text"])
    traces = sample_run()
    rows = metrics.rows(traces, None)
    assert seen["down"] == [row.name for row in sorted(rows, key=lambda row: -row.accuracy)]
    assert seen["up"] == [row.name for row in sorted(rows, key=lambda row: row.accuracy)]
    kinds = [{metrics.outcome(found[i]) for found in traces.values()} for i in range(60)]
    assert seen["domain"] == "15 of 60 queries"
    assert seen["errors"] == "2 of 60 queries"
    assert seen["split"] == f"{sum(kind >= {'right', 'wrong'} for kind in kinds)} of 60 queries"
    assert seen["search"] == "1 of 60 queries"
    assert seen["detail"] == "reading-007"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_hostile_text_is_inert_in_a_browser(tmp_path):
    path = tmp_path / "report.html"
    run = hostile_run()
    write_report(path, [replace(run, traces={HOSTILE: run.traces[HOSTILE], "other": run.traces[HOSTILE]})])
    parsed = Page(browsed(f"file://{path}#run=0&query={quote(HOSTILE, safe='')}", tmp_path / "profile"))
    (detail,) = parsed.of("div", "detail")
    assert detail["text"].count("onerror") >= 6
    assert not parsed.of("img")
    assert "owned" not in [e["text"] for e in parsed.of("title")]


# --- comparisons and sheets ---------------------------------------------------------------------------


def test_a_run_with_a_baseline_shows_differences_and_one_without_does_not(parsed):
    heads = [e["text"] for e in parsed.of("h2")]
    assert {"Differences from the baseline", "Effects by domain"} <= set(heads)
    assert not any("Differences" in e["text"] for e in Page(page([view(baseline=None)])).of("h2"))
    assert not any("Differences" in e["text"] for e in Page(page([view(baseline="gone")])).of("h2"))


def test_sheets_come_first_and_runs_keep_their_own_data():
    found = Sheet(name=HOSTILE, about="replayed", cards=(Card(title="Frontier", markup="<svg></svg>"),))
    parsed = Page(page([view(sample_run(12), name="first"), view(name="second")], [found]))
    assert not parsed.misnested
    assert [e["text"] for e in parsed.of("h1")] == [HOSTILE, "first", "second"]
    assert [len(data_of(parsed, i)["queries"]) for i in (1, 2)] == [12, 60]
    assert not [e for e in parsed.elements if e.get("id") == "data-0"]
    ids = [e["id"] for e in parsed.elements if "id" in e]
    assert len(ids) == len(set(ids))


def test_a_page_of_sheets_alone_is_whole():
    parsed = Page(page([], [Sheet(name="replay", about="a table", cards=())]))
    assert not parsed.misnested
    assert not parsed.open
    assert [e["text"] for e in parsed.of("h1")] == ["replay"]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_sheets_and_runs_switch_in_a_browser(tmp_path):
    found = Sheet(name="replay", about="a table", cards=(Card(title="Frontier", markup="<p>here</p>"),))
    write_report(tmp_path / "r.html", [view(sample_run(4))], [found])
    for at, hidden in ((0, "run-1"), (1, "run-0")):
        dom = browsed(f"file://{tmp_path / 'r.html'}#run={at}", tmp_path / f"profile-{at}")
        elements = {e["id"]: e for e in Page(dom).elements if "id" in e}
        assert "hidden" in elements[hidden]
        assert "hidden" not in elements[f"run-{at}"]
