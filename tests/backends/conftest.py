"""Fixtures of the local backend's tests."""

import pytest

from coterie.types import Agent, Message, Sampling


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    """Folder of a tiny Llama with chat template."""
    from tiny_models import save

    return save(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def adapters(tmp_path_factory, llama):
    """Folders of three different adapters of the tiny Llama."""
    from tiny_models import save_adapter

    root = tmp_path_factory.mktemp("adapters")
    return [save_adapter(root / f"a{i}", llama, seed=i) for i in range(3)]


@pytest.fixture
def agent():
    """Makes an agent from its sampling."""

    def make(name="a", *, adapter=None, instruction="", **sampling):
        defaults = {"temperature": 0.0, "max_tokens": 12}
        return Agent(name=name, model="local:m", adapter=adapter, sampling=Sampling(**(defaults | sampling)))

    return make


@pytest.fixture
def ask():
    """A user message, and what the assistant has begun to say."""

    def make(text, prefill=None):
        end = (Message(role="assistant", content=prefill),) if prefill is not None else ()
        return (Message(role="user", content=text), *end)

    return make
