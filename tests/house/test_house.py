"""Rules for the code: what the library may not use, the direction of imports, what an idle agent loads, and what is documented."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sbon.config import field_docstrings, load, sample
from sbon_agent.config import AgentConfig
from tests.mutants.listing import read_mutants
from tests.source_code import ROOT, modules, source

IMPURE = {"asyncio", "socket", "time", "random", "threading", "selectors", "subprocess", "multiprocessing", "concurrent"}
LAYERS = {"sbon": {"sbon_agent", "sbon_testbed"}, "agent": {"sbon_testbed"}, "testbed": set()}
"""Packages that each folder may not import."""

FRAGMENTS = {"By", "How", "Of", "That", "What", "Where", "Whether", "Who"}
"""Words that docstrings do not begin with."""

SYSTEM = {f"system/{kind}" for kind in ("differential", "e2e", "integration", "simulation")}
"""Folders with tests of whole agents."""

HEAVY = ("polars", "scipy", "sqlglot", "typer", "rich", "pandas", "pyarrow", "pyspark", "matplotlib")


def is_pure(path: Path) -> bool:
    """Tells whether a module must be without I/O: all of the library but the command line and the analysis package."""
    return path.parts[0] == "sbon" and path.parts[1] not in ("cli", "analysis")


def config_structs(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    yield kind
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from config_structs(field.type)


STRUCTS = list(config_structs(AgentConfig))


def test_library_reaches_for_no_clock_socket_thread_or_global_randomness():
    found = [
        f"{path}:{line} imports {name}"
        for path in modules("sbon")
        if is_pure(path)
        for line, name in source(path).imports
        if name.split(".")[0] in IMPURE | LAYERS["sbon"]
    ]

    assert found == []


def test_library_takes_time_and_randomness_as_arguments():
    """`datetime.now()` and numpy's global generator would let a run differ from its seed."""
    found = []
    for path in filter(is_pure, modules("sbon")):
        for line, called, arguments in source(path).calls:
            clock = "datetime" in called and called.endswith((".now", ".utcnow", ".today"))
            unseeded = called.startswith("np.random.rand") or (called.endswith("default_rng") and not arguments)
            if clock or unseeded:
                found.append(f"{path}:{line} calls {called}")

    assert found == []


@pytest.mark.parametrize("folder", sorted(LAYERS))
def test_imports_point_one_way(folder):
    found = [
        f"{path}:{line} imports {name}"
        for path in modules(folder)
        for line, name in source(path).imports
        if name.split(".")[0] in LAYERS[folder]
    ]

    assert found == []


def test_commands_print_through_one_module_which_makes_text_of_others_printable():
    found = []
    for path in [path for path in modules("sbon/cli") if path.name != "output.py"] + [Path("agent/telemetry/collect_command.py")]:
        for line, called, _ in source(path).calls:
            if called in ("print", "typer.echo") or called.startswith(("sys.stdout.write", "sys.stderr.write")) or called.endswith("secho"):
                found.append(f"{path}:{line} calls {called}")

    assert found == []


def test_frames_are_computed_on_the_thread_that_asks():
    """For several columns, polars runs `select` and `with_columns` on one thread of its own; all executor threads would wait for it."""
    folders = ("sbon/operators", "sbon/formats", "sbon/connectors", "agent/connectors")
    found = [
        f"{path}:{line}: {called}"
        for folder in folders
        for path in modules(folder)
        for line, called, _ in source(path).calls
        if called.endswith((".select", ".with_columns")) and not is_lazy(called.rpartition(".")[0])
    ]
    assert found == [], "use select_seq and with_columns_seq"


def is_lazy(text: str) -> bool:
    """Tells whether columns are selected from a lazy frame, or from no frame (`pl.select`)."""
    return text == "pl" or text.startswith("lazy.") or ".lazy()" in text or "scan_parquet" in text


@pytest.mark.parametrize("folder", sorted(LAYERS))
def test_docstrings_begin_with_a_verb_or_a_noun(folder):
    """Only those who know the code understand a fragment such as "Of each node" or "Whether it moves"."""
    found = [
        f"{path}:{line}: {text.splitlines()[0]}"
        for path in modules(folder)
        for line, text in source(path).docstrings
        if text.partition(" ")[0] in FRAGMENTS
    ]

    assert found == []


def test_nothing_is_unpickled_or_evaluated():
    everything = [path for folder in LAYERS for path in modules(folder)]
    unsafe = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    imported = [
        f"{path}:{line} imports {name}" for path in everything for line, name in source(path).imports if name.split(".")[0] in unsafe
    ]
    called = [f"{path}:{line}" for path in everything for line, called, _ in source(path).calls if called in ("eval", "exec")]

    assert imported + called == []


@pytest.mark.parametrize(
    "wanted",
    [
        "sbon_agent.__main__, sbon_agent.daemon, sbon_agent.asyncio_host, sbon_agent.node",
        "sbon.membership.machine",
        "sbon.cost_space.localiser, sbon.cost_space.nearest, sbon.cost_space.load",
        "sbon.wire.messages, sbon.links.sender, sbon.links.receiver, sbon.framing, sbon.sealing, sbon.control, sbon.config",
        "sbon.query.plan, sbon.query.catalog, sbon.query.functions, sbon.query.text, sbon.query.signature",
    ],
)
def test_idle_agent_loads_no_heavy_library(wanted):
    probe = f"import sys\nimport {wanted}\nprint([name for name in {HEAVY!r} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)

    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_setting_says_what_turning_it_costs(struct):
    documents = field_docstrings(struct)
    sections = {field.name for field in msgspec.structs.fields(struct) if field.type in STRUCTS}

    assert struct.__doc__
    assert [name for name in struct.__struct_fields__ if name not in sections and not documents.get(name, "").strip()] == []


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_configuration_is_strict_and_frozen(struct):
    settings = struct.__struct_config__

    assert (settings.frozen, settings.forbid_unknown_fields) == (True, True)
    assert struct() == struct()


def test_sample_configuration_loads_back_as_the_defaults():
    assert load(AgentConfig, sample(AgentConfig()), "sample") == AgentConfig()


def test_same_configuration_is_printed_in_every_process():
    def printed(seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-m", "sbon_agent", "--print-config", "--label", "b=1", "--label", "a=2"]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=True).stdout

    assert printed("1") == printed("2")


def test_two_commands_of_a_new_user_are_in_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    assert "make demo" in readme
    assert "make test" in readme


def test_tests_lie_beside_their_subject():
    """`make test` runs every folder with tests, so a new one must be of a package, or be known here."""
    packages = {path.name for path in (ROOT / "sbon").iterdir() if path.is_dir()}
    folders = {path.parent.relative_to(ROOT / "tests").as_posix() for path in (ROOT / "tests").rglob("test_*.py")}

    assert folders - packages == {"agent", "first_hour", "house", "paper", "testbed", "transport", *SYSTEM}


def test_every_deliberate_bug_finds_its_text():
    """A change to a line that `tests/mutants/*.toml` breaks on purpose must be repeated in that file."""
    texts = {mutant.file: (ROOT / mutant.file).read_text(encoding="utf-8") for mutant in read_mutants()}

    assert [mutant.name for mutant in read_mutants() if mutant.apply(texts[mutant.file]) is None] == []


def test_every_deliberate_bug_names_tests_that_are_there():
    """A node id that names no test would break the mutation run."""
    named = {test for mutant in read_mutants() for test in mutant.tests if "::" in test}
    defined = {(file, test.rpartition("::")[2].partition("[")[0]) for test in named for file in [test.partition("::")[0]]}

    assert [test for mutant in read_mutants() for test in mutant.tests if not (ROOT / test.partition("::")[0]).exists()] == []
    assert [name for file, name in sorted(defined) if f"def {name}(" not in (ROOT / file).read_text(encoding="utf-8")] == []
