"""What the tests of tasks and graders share."""

import pytest

from batuta.lab.tasks.graders import GraderRegistry


@pytest.fixture(scope="session")
def graders():
    """All graders that need no sandbox and no judge: their process for algebra takes seconds to start."""
    with GraderRegistry() as shared:
        yield shared
