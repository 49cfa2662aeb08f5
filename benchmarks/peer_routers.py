"""Fits LLMRouter's kNN, SVM, MLP and MF on splits that `peers.py` wrote. Runs in the interpreter that has them.

    python benchmarks/peer_routers.py FOLDER [--twins] [--published]

It imports nothing of this project. For each `split-N.npz` of the folder it writes `picks-N.npz` and `picks-N.json`;
test outcomes are in neither. The package's own classes read the files that they ask for, label and train; only
the encoder is not theirs: they are given the split's vectors. Where the package does not import, or one of its
routers fails, a scikit-learn twin with the same settings stands in, and the row says so.
"""

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
import time
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.linear_model import SGDClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC

PUBLISHED = {
    "kNN": {"n_neighbors": 5, "weights": "uniform", "algorithm": "auto", "p": 2, "metric": "minkowski"},
    "SVM": {"kernel": "rbf", "C": 1.0, "gamma": "scale", "probability": True},
    "MLP": {"hidden_layer_sizes": [128, 64], "activation": "relu", "lr": 1e-3, "epochs": 100, "batch_size": 32},
    "MF": {"latent_dim": 128, "lr": 1e-3, "epochs": 5, "noise_alpha": 0.0},
}
"""`hparam` of the package's configs/model_config_train/*.yaml; what is not here has the classes' own default."""

OTHERS = {
    "kNN": ({"n_neighbors": 20}, {"n_neighbors": 50}, {"n_neighbors": 100}),
    "SVM": ({"C": 10.0},),
    "MLP": ({"epochs": 10},),
    "MF": ({"lr": 1e-2},),
}
"""What a careful user would try on the validation part beside the published settings: fewer epochs where the
published ones overfit, a larger step because these vectors are shorter than those that the package encodes."""

FASTER = {"SVM": {"probability": False}}
"""Set where it changes no decision."""

ORDERS = ("listed", "best first", "shuffled")
"""The package labels a query with the first row that has the highest score: the order of rows breaks ties.
`listed` is the table's order of agents, the same for every query."""

MISHAPS = (ImportError, OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError)


class Part:
    """One split with the rows of each query in some order. Scores (n, A), NaN where there is no outcome."""

    def __init__(self, split, order, folder):
        self.x, self.scores = split["train"], split["train_scores"]
        n, agents = self.scores.shape
        self.order = np.tile(np.arange(agents), (n, 1))  # (n, A)
        if order == "best first":
            self.order = np.tile(np.argsort(-np.nanmean(self.scores, axis=0), kind="stable"), (n, 1))
        if order == "shuffled":
            self.order = np.random.default_rng(0).permuted(self.order, axis=1)
        self.folder = folder

    @property
    def labels(self):
        """Column of the best agent of each query, the first of equal ones in this order: (n,)."""
        ordered = np.take_along_axis(np.nan_to_num(self.scores, nan=-1.0), self.order, axis=1)
        return self.order[np.arange(len(ordered)), ordered.argmax(axis=1)]

    def write(self):
        """The package's routing rows and embeddings. A query is known by its number, an agent by its column."""
        import torch

        with (self.folder / "routing.jsonl").open("w") as out:
            for i, row in enumerate(self.scores):
                for agent in self.order[i].tolist():
                    if not np.isnan(row[agent]):
                        line = {"query": f"{i:06}", "embedding_id": i, "model_name": str(agent)}
                        out.write(json.dumps({**line, "performance": float(row[agent])}) + "\n")
        vectors = torch.from_numpy(np.ascontiguousarray(self.x))
        torch.save({i: vectors[i].clone() for i in range(len(vectors))}, self.folder / "vectors.pt")

    def config(self, settings):
        """A configuration file of the package for these rows."""
        place = self.folder / "router.yaml"
        paths = {"routing_data_train": "routing.jsonl", "query_embedding_data": "vectors.pt"}
        found = {
            "data_path": {key: str(self.folder / name) for key, name in paths.items()},
            "model_path": {"ini_model_path": "", "save_model_path": str(self.folder / "saved" / "router.pkl")},
            "hparam": settings,
        }
        place.write_text(json.dumps(found))  # JSON is YAML
        return str(place)


# --- the package's own ---------------------------------------------------------------------------------


def own(name, part, settings, seed):
    """A function from vectors to columns, and the seconds of training without those of reading files."""
    import torch
    from llmrouter import models

    torch.manual_seed(seed)
    if name == "MF":
        settings = {**settings, "text_dim": part.x.shape[1]}
    kinds = {"MLP": ("MLPRouter", "MLPTrainer")}
    router_name, trainer_name = kinds.get(name, (f"{name.upper()}Router", f"{name.upper()}RouterTrainer"))
    router = getattr(models, router_name)(part.config(settings))
    began = time.perf_counter()
    trainer = getattr(models, trainer_name)(router, device="cpu")
    trainer.train()
    return OWN[name](router, trainer.model), time.perf_counter() - began


def _classes(router, model):
    return lambda x: np.array([int(name) for name in model.predict(list(x))])


def _network(router, model):
    import torch

    return lambda x: np.array([int(router.idx_to_model[int(i)]) for i in model.predict(torch.from_numpy(x))])


def _factors(router, model):
    import torch

    def decide(x):
        with torch.no_grad():
            best = [int(model.score_all(model.project_text(row)).argmax()) for row in torch.from_numpy(x)]
        return np.array([int(router.idx_to_model[i]) for i in best])

    return decide


OWN = {"kNN": _classes, "SVM": _classes, "MLP": _network, "MF": _factors}


# --- twins ---------------------------------------------------------------------------------------------


def twin(name, part, settings, seed):
    """The same in scikit-learn."""
    began = time.perf_counter()
    if name == "MF":
        return _pairwise(part, settings, seed), time.perf_counter() - began
    model = _twin_of(name, settings, seed).fit(part.x, part.labels)
    return model.predict, time.perf_counter() - began


def _twin_of(name, settings, seed):
    if name == "kNN":
        return KNeighborsClassifier(**settings)
    if name == "SVM":
        return SVC(**settings)
    return MLPClassifier(
        hidden_layer_sizes=settings["hidden_layer_sizes"],
        activation=settings["activation"],
        learning_rate_init=settings["lr"],
        max_iter=settings["epochs"],
        batch_size=settings["batch_size"],
        random_state=seed,
    )


def _pairwise(part, settings, seed):
    """Logistic regression of "this agent, not that one" on the query's vector, by plain SGD.

    Bilinear as theirs. With at most `latent_dim` agents a matrix of agents by features has no more to learn than
    theirs has; their agent vectors are normalised, these are not.
    """
    n, width = part.scores.shape[1], part.x.shape[1]
    known = ~np.isnan(part.scores)
    known[np.arange(len(known)), part.labels] = False
    rows, losers = np.nonzero(known)
    winners = part.labels[rows]
    model = SGDClassifier(loss="log_loss", fit_intercept=False, random_state=seed, average=True)
    rng = np.random.default_rng(seed)
    for _ in range(settings["epochs"]):
        order = rng.permutation(len(rows))
        for start in range(0, len(order), 2048):
            at = order[start : start + 2048]
            signs = rng.choice([-1.0, 1.0], size=len(at))
            pairs = _differences(part.x[rows[at]] * signs[:, None], winners[at], losers[at], n * width)
            model.partial_fit(pairs, signs > 0, classes=[False, True])
    factors = model.coef_.reshape(n, width)
    return lambda x: (x @ factors.T).argmax(axis=1)


def _differences(x, winners, losers, columns):
    """(rows, agents * width), sparse: the vector at the winner's place, its negative at the loser's."""
    width = x.shape[1]
    places = np.concatenate([agent[:, None] * width + np.arange(width) for agent in (winners, losers)], axis=1)
    ends = np.arange(len(x) + 1) * 2 * width
    return csr_matrix((np.concatenate([x, -x], axis=1).ravel(), places.ravel(), ends), shape=(len(x), columns))


# --- rows ----------------------------------------------------------------------------------------------


def fitted(name, part, settings, seed, reason):
    """The package's own where it works, else its twin, and why."""
    if not reason:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                return (*own(name, part, settings, seed), "")
        except MISHAPS as mishap:
            reason = f"{type(mishap).__name__}: {mishap}"
    return (*twin(name, part, settings, seed), reason)


def rows_of(split, seed, reason, published):
    """A row for each router with its published settings, and one with what validation selects."""
    with tempfile.TemporaryDirectory() as place:
        parts = {}
        for order in ORDERS[: 1 if published else None]:
            folder = Path(place) / order
            folder.mkdir()
            parts[order] = Part(split, order, folder)
            if not reason:
                parts[order].write()
        return [row for name in PUBLISHED for row in rows_for(name, parts, (split, seed, reason))]


def rows_for(name, parts, given):
    """The published settings on the table's order of rows; and the best of every order and setting."""
    first = one(name, parts["listed"], PUBLISHED[name], given) | {"setting": {"ties": "listed"}}
    published = {**first, "name": f"{name}, published", "tried": 1}
    if len(parts) == 1:
        return [published]
    tried = [first]
    for order, part in parts.items():
        for other in ({}, *OTHERS[name])[order == "listed" :]:
            settings = PUBLISHED[name] | FASTER.get(name, {}) | other
            tried.append(one(name, part, settings, given) | {"setting": {"ties": order, **other}})
    seconds = sum(row["seconds"] for row in tried)
    return [published, {**_best(tried), "name": f"{name}, selected", "tried": len(tried), "seconds": seconds}]


def _best(tried):
    """The first of those with the best score on validation."""
    return max(tried, key=lambda row: row["validation"])


def one(name, part, settings, given):
    """Fit, choose for validation and test."""
    split, seed, reason = given
    if sys.stderr.isatty():
        print(f"\r\x1b[Kpeers: seed {seed}, {name}, {part.folder.name}", end="", file=sys.stderr, flush=True)
    decide, seconds, reason = fitted(name, part, settings, seed, reason)
    began = time.perf_counter()
    checked, picks = decide(split["validation"]), decide(split["test"])
    scores = split["validation_scores"][np.arange(len(checked)), checked]
    return {
        "validation": float(scores.mean()),
        "picks": np.asarray(picks, dtype=np.int64),
        "seconds": seconds + time.perf_counter() - began,
        "twin": reason,
    }


def versions():
    """Of what takes part here."""
    found = {"python": sys.version.split()[0]}
    for package in ("llmrouter-lib", "scikit-learn", "torch", "numpy"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def why_twins():
    """Why the package cannot be used; empty where it can."""
    try:
        import llmrouter.models as models
    except MISHAPS as mishap:
        return f"{type(mishap).__name__}: {mishap}"
    return "" if hasattr(models, "MFRouterTrainer") else "it has no MFRouterTrainer"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="where peers.py put the splits")
    parser.add_argument("--twins", action="store_true", help="use the twins whatever is installed")
    parser.add_argument("--published", action="store_true", help="no other settings than the published ones")
    options = parser.parse_args()
    if options.folder is None:
        print("peer_routers.py: peers.py starts this; nothing to do without a folder")
        return
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would ask the network when imported
    warnings.simplefilter("ignore")
    reason = "asked for" if options.twins else why_twins()
    for file in sorted(options.folder.glob("split-*.npz")):
        seed = int(file.stem.split("-")[1])
        with np.load(file, allow_pickle=False) as found:
            split = dict(found)
        rows = rows_of(split, seed, reason, options.published)
        np.savez(options.folder / f"picks-{seed}.npz", **{row["name"]: row.pop("picks") for row in rows})
        told = {"rows": rows, "versions": versions()}
        (options.folder / f"picks-{seed}.json").write_text(json.dumps(told))
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)


if __name__ == "__main__":
    main()
