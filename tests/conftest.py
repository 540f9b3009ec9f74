"""Gives each test a fresh log, and properties the same examples in every run."""

import atexit
import contextlib
import gc
import importlib
import os
import pkgutil
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

import sbon
import sbon_agent
import sbon_testbed
from sbon_agent.logs import structlog
from tests.examples import examples, try_many


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--soak`, which runs the tests that take minutes and many examples of properties, and only those."""
    parser.addoption("--soak", action="store_true", help="run the tests that take minutes and many examples of properties, and only those")


def pytest_configure(config: pytest.Config) -> None:
    """Sets how many examples properties try, and which. Handles SIGTERM like Ctrl-C, so that tests end what they have started.

    A shell lets programs in the background ignore Ctrl-C; those that tests start must not.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    if config.getoption("--soak"):
        try_many()
    # Examples are derived from the test's code, so a failure repeats on every machine; changed code gets new examples.
    # There is no deadline, because the machine may be slow.
    settings.register_profile("sbon", examples(100), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    # The mutation run needs only the failure, not the smallest example; shrinking takes minutes.
    settings.register_profile("mutants", parent=settings.get_profile("sbon"), phases=[Phase.explicit, Phase.generate])
    settings.load_profile(os.environ.get("SBON_TEST_PROFILE", "sbon"))


def _share_compiling(config: pytest.Config) -> None:
    """Imports the tests of a whole run in another order on each worker, so that workers find modules that others have compiled.

    pytest rewrites the assertions of a module at its first import after a change, which takes ten seconds for all modules. Workers that
    import in the same order would each do all of this work at the same time.
    """
    number, workers = (int(os.environ.get(f"PYTEST_XDIST_WORKER{what}", "0").removeprefix("gw")) for what in ("", "_COUNT"))
    folders = [config.invocation_params.dir / one for one in config.args]
    if workers < 2 or not all(folder.is_dir() for folder in folders):
        return
    paths = sorted(path for folder in folders for path in folder.rglob("test_*.py"))
    first = number * len(paths) // workers
    for path in paths[first:] + paths[:first]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # collection reports the problem
            importlib.import_module(".".join(path.relative_to(config.rootpath).with_suffix("").parts))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Stops the garbage collector while modules and tests are read, because these objects stay."""
    gc.disable()
    try:
        _share_compiling(session.config)
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects soak tests. With `--soak`, deselects all other tests but properties, which then try many examples."""
    soak = bool(config.getoption("--soak"))
    runs = {item: ("soak" in item.keywords) == soak or (soak and "hypothesis" in item.keywords) for item in items}
    if not all(runs.values()):
        config.hook.pytest_deselected(items=[item for item in items if not runs[item]])
        items[:] = [item for item in items if runs[item]]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Loads all modules, because examples draw on the constants of loaded modules, which must not depend on earlier tests of the worker."""
    if any("hypothesis" in item.keywords for item in session.items):
        for package in (sbon, sbon_agent, sbon_testbed):
            for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
                with contextlib.suppress(ImportError):  # an extra that is not installed
                    importlib.import_module(module.name)
    gc.set_threshold(50_000, 20, 20)  # virtual worlds make many objects that live as long as their tests
    gc.freeze()  # modules and tests stay, so the collector can skip them
    # Some libraries warn of modules that stay until the end. Not earlier: pytest collects garbage several times when it ends.
    atexit.register(gc.unfreeze)


@pytest.fixture(autouse=True)
def _fresh_log() -> Iterator[None]:
    """Resets the log of the process, which a daemon or a virtual world under test has set up."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _same_priority() -> Iterator[None]:
    """Fails a test that changes the priority of its process, because all tests after it would be slower."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    yield
    assert os.getpriority(os.PRIO_PROCESS, 0) == before, "the test has changed the priority of its own process"
