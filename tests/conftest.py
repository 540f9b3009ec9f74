"""What all tests share: a fresh log for each, and examples that are the same in every run."""

import contextlib
import importlib
import os
import pkgutil
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

import sbon
import sbon_agent
import sbon_testbed
from sbon_agent.logs import structlog

# Examples from the test's own name: a run that fails fails again, here and elsewhere. New examples come with changed code.
# How long examples take is the machine's affair.
settings.register_profile("sbon", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
# The mutation run wants to know that a test fails, not the smallest example: shrinking takes minutes.
settings.register_profile("mutants", parent=settings.get_profile("sbon"), phases=[Phase.explicit, Phase.generate])
settings.load_profile(os.environ.get("SBON_TEST_PROFILE", "sbon"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--soak`, which runs the tests that take minutes, and only those."""
    parser.addoption("--soak", action="store_true", help="run the tests that take minutes, and only those")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects soak tests, or with `--soak` all others."""
    soak = bool(config.getoption("--soak"))
    left_out = [item for item in items if ("soak" in item.keywords) != soak]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if ("soak" in item.keywords) == soak]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Load all modules, since examples draw on the constants of those that are loaded: not only on what ran before on the same worker."""
    if not any("hypothesis" in item.keywords for item in session.items):
        return
    for package in (sbon, sbon_agent, sbon_testbed):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            with contextlib.suppress(ImportError):  # an extra that is not installed
                importlib.import_module(module.name)


@pytest.fixture(autouse=True)
def _fresh_log() -> Iterator[None]:
    """A daemon or a virtual world under test sets up the log of the whole process: undo it."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _same_priority() -> Iterator[None]:
    """A test that lowers the priority of its own process makes all tests after it wait."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    yield
    assert os.getpriority(os.PRIO_PROCESS, 0) == before, "the test has changed the priority of its own process"
