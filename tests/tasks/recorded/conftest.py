"""What the tests of recorded pools share."""

import pytest
from recorded_made import made

from batuta.tasks.recorded import Recorded


@pytest.fixture
def record() -> Recorded:
    return made()
