"""One pool of processes for all tests: starting one takes a second."""

import pytest

from batuta.lab.tasks.graders import MathsPool


@pytest.fixture(scope="session")
def pool():
    with MathsPool() as shared:
        yield shared
