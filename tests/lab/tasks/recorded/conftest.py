"""What the tests of recorded pools share."""

import pytest
from recorded_made import made

from batuta.lab.tasks.recorded import RecordedOutcomes


@pytest.fixture
def record() -> RecordedOutcomes:
    return made()
