"""What all tests share: a fresh log for each, and examples that are the same in every run."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from agent.logs import structlog

# Examples from the test's own name: a run that fails fails again, here and elsewhere. New examples come with changed tests.
settings.register_profile("sbon", deadline=None, derandomize=True)
settings.load_profile("sbon")


@pytest.fixture(autouse=True)
def _fresh_log() -> Iterator[None]:
    """A daemon or a virtual world under test sets up the log of the whole process: undo it."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
