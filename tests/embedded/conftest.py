"""One small model for the tests that need any."""

import pytest

from batuta.embedded import EmbeddedClient
from embedded import making


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    settings = making.config()
    return making.write(
        tmp_path_factory.mktemp("models") / "tiny", settings, making.weights(settings)
    )


@pytest.fixture(scope="session")
def model(folder):
    return EmbeddedClient.open(folder)
