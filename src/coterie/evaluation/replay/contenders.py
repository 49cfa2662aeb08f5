"""Which routers a replay compares, and the settings of each that are tried on the validation part."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from coterie.config import build, find
from coterie.features.hashed import Hashed
from coterie.features.joined import Joined
from coterie.features.kept import Kept
from coterie.features.sentence import PACKAGE, Sentence
from coterie.storage.paths import cache_folder
from coterie.types import Encoder, record


@record
class Contender:
    """A router by the name of its row: `candidates` are the settings among which validation selects."""

    name: str
    candidates: tuple[Mapping[str, Any], ...]


def tried(use: str, *settings: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The router `use` under each of the settings."""
    return tuple({"use": use, **setting} for setting in settings or ({},))


def around(use: str, method: str) -> tuple[Mapping[str, Any], ...]:
    """The router `use` with its scores calibrated."""
    return ({"use": "calibrated", "method": method, "router": {"use": use}},)


CONTENDERS = (
    Contender(name="kNN", candidates=tried("knn", {"k": 20}, {"k": 50}, {"k": 100})),
    Contender(name="MLP", candidates=tried("mlp", {"objective": "reward"}, {"objective": "best"})),
    Contender(
        name="familiarity",
        candidates=tried("familiarity", {"hidden": 128, "width": 64, "epochs": 12, "batch": 256}),
    ),
    Contender(name="matrix factorisation", candidates=tried("matrix_factorisation")),
    Contender(name="RouterDC", candidates=tried("router_dc")),
    Contender(name="RouteMoA scorer", candidates=tried("route_moa")),
    Contender(name="HybridLLM", candidates=tried("hybrid_llm")),
    Contender(name="ICL-Router light", candidates=tried("icl")),
    Contender(name="LinUCB", candidates=tried("lin_ucb")),
    Contender(name="Thompson", candidates=tried("thompson")),
    Contender(name="forest", candidates=tried("forest")),
    Contender(name="forest without layout", candidates=tried("forest", {"layout": False})),
    Contender(name="forest + temperature", candidates=around("forest", "temperature")),
    Contender(name="forest + isotonic", candidates=around("forest", "isotonic")),
)
UNSCALED = ("familiarity", "router_dc", "hybrid_llm")
"""Routers whose scores order agents and are no expected outcomes."""
JOINED = ("forest",)
"""Routers that read words beside the sentence embedding."""


MANY = 5000
"""Questions that a sentence model encodes in about two minutes on two cores."""


@record
class Features:
    """The encoders of a replay, which remember what they have encoded."""

    words: Encoder
    sentence: Encoder

    @staticmethod
    def opened(encoder: str) -> "Features":
        """`sentence` (MiniLM) or `hashed` (n-grams, no extra needed)."""
        folder = cache_folder() / "features"
        words = Kept(Hashed(), folder)
        return Features(words=words, sentence=Kept(Sentence(), folder) if encoder == "sentence" else words)

    def of(self, use: str) -> Encoder:
        """The encoder of a router."""
        if use not in JOINED or self.sentence is self.words:
            return self.sentence
        return Joined(encoders=(self.words, self.sentence))


def default_encoder(questions: int) -> str:
    """`sentence` where its model is installed and so many questions are encoded in minutes, else `hashed`."""
    installed = find_spec(PACKAGE) and find_spec("sentence_transformers")
    return "sentence" if installed and questions <= MANY else "hashed"


def made(table: Mapping[str, Any], features: Features, seed: int) -> Any:
    """The router of a candidate's settings, over these features, under this seed."""
    fields = find("router", table["use"]).__dataclass_fields__  # type: ignore[attr-defined]
    given: dict[str, Any] = {"encoder": features.of(table["use"]), "seed": seed}
    given = {key: value for key, value in given.items() if key in fields}
    if "router" in table:
        given["router"] = made(table["router"], features, seed)
    return build("router", {**table, **given})


def predicts_chances(table: Mapping[str, Any]) -> bool:
    """Whether these settings' scores are expected outcomes, which can be right or wrong as chances."""
    if table["use"] == "mlp":
        return bool(table.get("objective", "reward") == "reward")
    return table["use"] not in UNSCALED
