"""One server for all modules that have none of their own: octavo serve over the fake worker, with keys off."""

import pytest

from octavo.testing.served import Served, fake_model


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return fake_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def server(model):
    found = Served([str(model), "--served-model-name", "tiny", "also", "--max-body-size", "256K", "--max-n", "8"])
    try:
        yield found.ready()
    finally:
        found.stop()
