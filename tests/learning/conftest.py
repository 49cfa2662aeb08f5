"""The tiny model that tests of learning share; made at the first use, so that tests without torch need none."""

import pytest


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The folder of a tiny random Llama; nobody writes there."""
    from tiny_team import save_base

    return save_base(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture
def base(tiny):
    """The tiny Llama, loaded; afterwards no bit and no flag of it may have changed."""
    from tiny_team import digest, flag_table

    from coterie.backends.base_model import base_model

    found = base_model(tiny)
    before, flags = digest(found), flag_table(found)
    assert not any(flags.values())
    yield found
    assert digest(found) == before
    assert flag_table(found) == flags
