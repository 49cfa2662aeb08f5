"""Loading published benchmarks: names, pins, the library behind them, what is said when something is missing."""

import json
import logging
from types import SimpleNamespace

import datasets
import pytest

from coterie.errors import ConfigError, DataError, UserError
from coterie.tasks import download, hub, pins
from coterie.tasks.benchmarks import BENCHMARKS, Part
from coterie.tasks.catalog import known_tasks, load_task
from coterie.tasks.contamination import overlap
from coterie.tasks.prompts import to_query

HEAD = "a" * 40
FETCH = download.fetch
GSM8K = [
    {"question": f"What is {n} + {n}?", "answer": f"{n}+{n}=<<{n}+{n}={2 * n}>>{2 * n}\n#### {2 * n}"}
    for n in range(9)
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(pins.VARIABLE, raising=False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "library"))


@pytest.fixture
def repo(tmp_path):
    """A folder that stands for a repository, with the rows of two splits in Parquet files."""
    folder = tmp_path / "repo"
    folder.mkdir()
    for split, rows in {"train": GSM8K[:6], "test": GSM8K[6:]}.items():
        datasets.Dataset.from_list(rows).to_parquet(folder / f"{split}.parquet")
    return folder


def from_folder(folder, seen=None):
    """A fetch that reads a local folder by the real one; notes what was asked for."""

    def fetch(part, split, revision, first):
        if seen is not None:
            seen.append((part.repo, split, revision, first))
        return FETCH(Part(repo=str(folder)), split, revision, first)

    return fetch


def no_hub(repo):
    raise AssertionError(f"the hub was asked about {repo}")


# --- loading ------------------------------------------------------------------------------------------


def test_rows_come_from_the_library_by_split_and_limit(repo):
    seen = []
    loaded = hub.load("hub:gsm8k", 2, fetch=from_folder(repo, seen), resolve=no_hub)
    assert [item.id for item in loaded.items] == ["gsm8k-test-0", "gsm8k-test-1"]
    assert [item.answer for item in loaded.items] == ["12", "14"]
    assert len(hub.load("hub:gsm8k/train", fetch=from_folder(repo, seen), resolve=no_hub).items) == 6
    pinned = BENCHMARKS["gsm8k"].parts[0].revision
    assert seen == [("openai/gsm8k", "test", pinned, False), ("openai/gsm8k", "train", pinned, False)]
    assert loaded.revisions == {"openai/gsm8k": pinned}


def test_a_task_of_the_hub_has_queries_under_the_usual_contracts(repo, monkeypatch, caplog):
    monkeypatch.setattr(download, "fetch", from_folder(repo))
    task = load_task("hub:gsm8k", limit=1, contracts={"math": "answer"})
    assert task.name == "hub:gsm8k"
    (query,) = task.queries
    assert (query.contract, query.reference) == ("answer", {"answer": "12"})
    assert query.metadata == {"source": "gsm8k", "domain": "gsm8k"}
    assert caplog.records == []
    assert {"hub:gsm8k", "hub:2wikimultihopqa"} <= set(known_tasks())


def test_left_out_rows_are_told_when_a_task_is_loaded(monkeypatch, caplog):
    rows = [GSM8K[0], {"question": "?", "answer": "no"}]
    monkeypatch.setattr(download, "fetch", lambda part, split, revision, first: iter(rows))
    with caplog.at_level(logging.WARNING):
        assert len(load_task("hub:gsm8k").queries) == 1
    assert "hub:gsm8k: left out: 1 × no #### in the answer" in caplog.text


def test_large_benchmarks_are_streamed_where_only_the_first_rows_are_wanted():
    seen = []

    def fetch(part, split, revision, first):
        seen.append(first)
        return iter([])

    for limit in (3, None):
        with pytest.raises(DataError, match="no row can be used"):
            hub.load("hub:hotpotqa", limit, fetch=fetch, resolve=no_hub)
    assert seen == [True, False]


def test_parts_take_turns_so_that_the_first_items_are_of_all_of_them():
    def fetch(part, split, revision, first):
        return iter([{"input": f"{part.config} {n}?", "target": str(n)} for n in range(50)])

    loaded = hub.load("hub:bbh/all", 54, fetch=fetch, resolve=no_hub)
    assert len({item.meta["subtask"] for item in loaded.items}) == 27
    single = hub.load("hub:bbh:navigate/all", fetch=fetch, resolve=no_hub)
    assert {item.meta["subtask"] for item in single.items} == {"navigate"}
    assert single.items[3].id == "bbh-navigate-test-3"


def test_one_published_split_is_parted_by_question_and_stays_so():
    """B75: what is trained on and what is tested on never share a question, whatever the order of the rows."""

    def fetch(part, split, revision, first):
        assert split == "test"
        return iter([{"input": f"Is {n} {part.config}?", "target": "yes"} for n in rows])

    rows = range(40)
    train, test, whole = (
        hub.load(f"hub:bbh/{s}", fetch=fetch, resolve=no_hub).items for s in ("train", "test", "all")
    )
    assert len(train) + len(test) == len(whole) == 40 * 27
    assert 0.1 < len(test) / len(whole) < 0.3
    assert overlap([to_query(item) for item in train], [to_query(item) for item in test]).pairs == ()
    rows = range(39, -1, -1)
    again = hub.load("hub:bbh/test", fetch=fetch, resolve=no_hub).items
    assert {item.question for item in again} == {item.question for item in test}


def test_an_id_twice_is_counted():
    row = {"problem": "1?", "answer": "1", "id": "0"}
    fetch = lambda part, split, revision, first: iter([row, row])  # noqa: E731
    loaded = hub.load("hub:aime_2025", fetch=fetch, resolve=no_hub)
    assert (len(loaded.items), loaded.skipped) == (1, {"an id that is there twice": 1})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hub:gsm9k", "unknown benchmark hub:gsm9k; did you mean 'gsm8k'?"),
        ("hub:gsm8k/tset", "unknown split 'tset' (there are train, test); did you mean 'test'?"),
        ("hub:bbh/everything", "unknown split 'everything' (there are train, test, all)"),
        ("hub:bbh:navigat", "unknown part 'navigat'; did you mean 'navigate'?"),
        ("hub:gsm8k:main", "unknown part 'main'; known: none"),
    ],
)
def test_a_wrong_name_is_one_line_with_the_nearest(name, said):
    with pytest.raises(UserError) as error:
        hub.load(name, resolve=no_hub)
    assert said in str(error.value)


# --- the library --------------------------------------------------------------------------------------


def test_streamed_rows_are_the_same_rows(repo):
    part = Part(repo=str(repo))
    assert (
        list(download.fetch(part, "test", HEAD, True))
        == list(download.fetch(part, "test", HEAD, False))
        == GSM8K[6:]
    )


def test_without_network_the_cache_is_read_and_only_at_the_pinned_commit(repo, monkeypatch):
    """The library itself would take any commit that its cache has."""
    monkeypatch.setattr(download, "_reachable", lambda repo, revision: False)
    assert len(list(download.fetch(Part(repo=str(repo)), "test", HEAD, True))) == 3
    load = datasets.load_dataset_builder

    def held(*given, **options):
        builder = load(*given, **options)
        builder.hash = "b" * 40
        return builder

    monkeypatch.setattr(datasets, "load_dataset_builder", held)
    with pytest.raises(DataError, match=r"the cache holds commit bbbbbbbbbb, not aaaaaaaaaa; connect once"):
        list(download.fetch(Part(repo=str(repo)), "test", HEAD, False))


def test_files_are_read_where_a_repository_needs_a_script(tmp_path):
    """No script is ever run: TACO's Arrow files and LogicBench's JSON files are read as they are."""
    folder = tmp_path / "taco"
    datasets.Dataset.from_list([{"question": "a"}, {"question": "b"}]).save_to_disk(folder / "test")
    (folder / "taco.py").write_text("raise SystemExit('run')")
    rows = download.fetch(Part(repo=str(folder), files="{split}/*.arrow"), "test", HEAD, True)
    assert [row["question"] for row in rows] == ["a", "b"]
    (folder / "data").mkdir()
    (folder / "data" / "x.json").write_text('{"axiom": "m", "samples": []}')
    (row,) = download.fetch(Part(repo=str(folder), files="data/*.json"), "test", HEAD, False)
    assert row["axiom"] == "m"
    with pytest.raises(DataError, match=r"has no file train/\*\.arrow: the data set changed upstream"):
        list(download.fetch(Part(repo=str(folder), files="{split}/*.arrow"), "train", HEAD, False))


@pytest.mark.parametrize(("config", "split"), [(None, "nope"), ("other", "test")])
def test_a_split_or_configuration_that_is_gone_is_one_line(repo, config, split):
    with pytest.raises(DataError, match=r"repo.* cannot be loaded: .*(nope|other)") as error:
        list(download.fetch(Part(repo=str(repo), config=config), split, HEAD, False))
    assert "\n" not in str(error.value)


def test_settings_of_the_library_are_left_as_they_were(repo, monkeypatch):
    """Also while rows of several parts are read in turns, of which some are offline."""
    import huggingface_hub

    def settings():
        return (
            datasets.is_progress_bar_enabled(),
            huggingface_hub.constants.HF_HUB_OFFLINE,
            datasets.config.HF_HUB_OFFLINE,
        )

    before = settings()
    monkeypatch.setattr(download, "_reachable", lambda repo, revision: False)
    rows = [download.fetch(Part(repo=str(repo)), split, HEAD, False) for split in ("train", "test")]
    for stream in rows:
        next(stream)
        assert settings() == before
    for stream in rows:
        assert len(list(stream)) in (2, 5)
    assert settings() == before


def answering(monkeypatch, error):
    """The hub's information call raises this."""
    import huggingface_hub

    def info(self, repo, revision=None, timeout=None):
        raise error

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", info)


def response(status):
    """What an error of the hub's library reads of an answer, whichever client it uses."""
    request = SimpleNamespace(method="GET", url="https://example.invalid/x")
    return SimpleNamespace(status_code=status, headers={}, request=request)


def hub_error(name, status, text):
    from huggingface_hub import errors

    kind = getattr(errors, name)
    try:
        return kind(text, response=response(status))
    except TypeError:
        return kind(text, response(status))


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        (
            "GatedRepoError",
            403,
            r"is gated: accept its terms on the hub's page, then log in \(`hf auth login`, or set HF_TOKEN\)",
        ),
        ("RepositoryNotFoundError", 404, "is not on the hub, or hidden from you"),
        ("RevisionNotFoundError", 404, "its pinned commit is gone; `coterie data pin` takes the present one"),
    ],
)
def test_what_the_hub_refuses_is_one_line_that_says_what_to_do(monkeypatch, name, status, said):
    answering(monkeypatch, hub_error(name, status, "Client Error\n\nlong text"))
    with pytest.raises(DataError, match=said) as error:
        list(download.fetch(Part(repo="some/data", config="main"), "test", HEAD, False))
    assert str(error.value).startswith("some/data (main)")
    assert "\n" not in str(error.value)


def test_without_network_and_cache_it_is_one_line_at_once(monkeypatch, capfd):
    """No retries, no chatter: the machine reads its cache, and says so where there is nothing in it."""
    answering(monkeypatch, ConnectionError("Name or service not known"))
    with pytest.raises(DataError, match=r"some/data: the hub cannot be reached and there is no copy in the cache"):
        list(download.fetch(Part(repo="some/data"), "test", HEAD, False))
    with pytest.raises(DataError, match=r"some/data: the hub cannot be reached and there is no copy in the cache"):
        list(download.fetch(Part(repo="some/data", files="*.json"), "test", HEAD, False))
    assert capfd.readouterr().err == ""


def test_an_unpinned_load_without_network_says_how_to_pin(monkeypatch):
    answering(monkeypatch, ConnectionError("Name or service not known"))
    with pytest.raises(
        DataError,
        match=r"lucadiliello/newsqa: the hub cannot be reached to say which commit .* run `coterie data pin` once",
    ):
        hub.load("hub:newsqa")


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(UserError, match=r"datasets is not installed: pip install 'coterie\[data\]'"):
        list(download.fetch(Part(repo="some/data"), "test", HEAD, False))


# --- pins ---------------------------------------------------------------------------------------------


def nothing(part, split, revision, first):
    return iter([{"context": "A gull.", "question": "Who?", "answers": ["gull"], "key": "k"}])


def test_the_first_load_pins_and_later_ones_use_exactly_that(tmp_path):
    asked = []

    def resolve(repo):
        asked.append(repo)
        return HEAD

    loads = [hub.load("hub:newsqa", fetch=nothing, resolve=resolve) for _ in range(2)]
    assert asked == ["lucadiliello/newsqa"]
    assert [loaded.revisions for loaded in loads] == [{"lucadiliello/newsqa": HEAD}] * 2
    assert json.loads((tmp_path / pins.LOCK).read_text()) == {"revisions": {"lucadiliello/newsqa": HEAD}}


def test_the_lock_file_comes_before_the_table(tmp_path, monkeypatch):
    monkeypatch.setenv(pins.VARIABLE, str(tmp_path / "deep" / "my.lock"))
    pins.write_lock(pins.lock_file(), {"openai/gsm8k": HEAD})
    pins.write_lock(pins.lock_file(), {"other/data": "b" * 40})
    assert pins.revision_of("openai/gsm8k", "c" * 40, no_hub) == HEAD
    assert pins.revision_of("more/data", "c" * 40, no_hub) == "c" * 40
    assert not (tmp_path / pins.LOCK).exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"revisions": {"a/b": "main"}}', '{"revisions": 3}'])
def test_a_damaged_lock_file_is_refused_and_kept(tmp_path, text):
    (tmp_path / pins.LOCK).write_text(text)
    with pytest.raises(DataError, match=r"coterie-data\.lock: is damaged"):
        hub.load("hub:newsqa", fetch=nothing, resolve=lambda repo: HEAD)
    assert (tmp_path / pins.LOCK).read_text() == text


def test_a_lock_file_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(pins.VARIABLE, str(tmp_path / "file" / "x.lock"))
    with pytest.raises((ConfigError, DataError), match="cannot be"):
        pins.revision_of("other/data", None, lambda repo: HEAD)
