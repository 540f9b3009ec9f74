"""Limits on the structure of the code: no circles of imports, no large classes, little protocol logic in `agent/`.

The numbers and lists here may only shrink. Lower them whenever the code needs less.
"""

import ast
import tomllib
from pathlib import Path

from tests.source_code import ROOT, modules, source

FOLDERS = {"sbon": "sbon", "agent": "sbon_agent", "testbed": "sbon_testbed"}
"""Folders of the code, with the names by which they are imported."""

INPUT_OUTPUT = {
    *("asyncio", "concurrent", "ctypes", "fcntl", "io", "mmap", "multiprocessing", "os", "pathlib", "resource", "select", "selectors"),
    *("shutil", "signal", "socket", "ssl", "subprocess", "tempfile", "threading", "time"),
    *("aiomqtt", "paho", "uvloop"),
}
"""Modules that reach outside; a module that imports one of them does I/O."""
WIRING = {
    "agent/assembly/access.py",
    "agent/assembly/execution.py",
    "agent/assembly/monitoring.py",
    "agent/assembly/network.py",
    "agent/assembly/optimisers.py",
    "agent/assembly/placement.py",
    "agent/assembly/queries.py",
    "agent/dispatch.py",
    "agent/host.py",
    "agent/hosting.py",
    "agent/node.py",
    "agent/reactions/engine.py",
    "agent/reactions/links.py",
    "agent/reactions/membership.py",
    "agent/reactions/queries.py",
}
"""Modules that connect the others, and the interface to the machine: they have no protocol logic."""
LINES_WITHOUT_IO_MAX, WITH_WIRING_MAX = 1_900, 3_000
"""Most lines in modules of `agent/` without I/O of their own: connectors, the engine's entry, requests of the command line; and of these
with the modules that connect the others."""
WITHOUT_IO = {
    "agent/connectors/",
    "agent/control_requests.py",
    "agent/engine/building.py",
    "agent/engine/engine.py",
    "agent/extensions.py",
    "agent/measuring.py",
    "agent/periodic.py",
    "agent/shutdown.py",
}
"""Folders and modules of `agent/` that may have these lines. Any other module without I/O belongs in `sbon/`."""
METHODS_MAX = 25
ATTRIBUTES_MAX = 20
AGENT_LINES_MAX = 250
AGENT_IMPORTS_MAX = 25


def does_io(path: Path) -> bool:
    """Tells whether a module reaches outside: by what it imports, or by opening files."""
    found = source(path)
    return any(call.called == "open" for call in found.calls) or any(name.split(".")[0] in INPUT_OUTPUT for name in found.needed)


def package_of(module: str) -> str:
    """Returns a module's folder below one of the three top folders; a module directly in a top folder is a package of its own."""
    return ".".join(module.split(".")[:2])


def packages() -> dict[str, set[str]]:
    """Returns the other packages that each package imports when it is loaded."""
    found: dict[str, set[str]] = {}
    for folder, name in FOLDERS.items():
        for path in modules(folder):
            here = package_of(".".join([name, *path.with_suffix("").parts[1:]]))
            theirs = {package_of(one) for one in source(path).loaded if one.split(".")[0] in FOLDERS.values()}
            found.setdefault(here, set()).update(theirs - {here})
    return found


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Returns the sets of packages that all reach each other."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for one in graph.get(waiting.pop(), set()) - seen:
                seen.add(one)
                waiting.append(one)
        return seen

    reach = {package: reached(package) for package in graph}
    return {frozenset({other for other in graph if other in reach[one] and one in reach[other]}) for one in graph if one in reach[one]}


def test_packages_do_not_import_each_other_in_circles():
    assert circles(packages()) == set()


def test_protocols_leave_the_agent():
    """A module of `agent/` without I/O of its own is protocol logic or arithmetic, and belongs in `sbon/`."""
    free = {path: len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in modules("agent") if not does_io(path)}
    assert sum(free.values()) <= WITH_WIRING_MAX
    free = {path: lines for path, lines in free.items() if path.as_posix() not in WIRING}
    assert sum(free.values()) <= LINES_WITHOUT_IO_MAX, sorted(free.items(), key=lambda one: -one[1])[:20]
    assert [path for path, lines in free.items() if lines > 1 and not path.as_posix().startswith(tuple(WITHOUT_IO))] == []


def test_no_class_knows_too_much():
    classes = [one for folder in FOLDERS for path in modules(folder) for one in source(path).classes]

    assert [one for one in classes if one.methods > METHODS_MAX or one.attributes > ATTRIBUTES_MAX] == []


def test_the_agent_only_joins_its_parts():
    """An addition belongs in one of the parts (`agent/assembly/`)."""
    text = (ROOT / "agent/node.py").read_text(encoding="utf-8")
    statements = [one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Import | ast.ImportFrom)]

    assert len(text.splitlines()) <= AGENT_LINES_MAX
    assert len(statements) <= AGENT_IMPORTS_MAX


def test_the_overlay_imports_nothing_of_the_built_in_engine():
    """Another kind of engine can take its place (`tests/system/simulation/test_another_engine.py`)."""
    outside = [path for path in modules("agent") if path.parts[1] != "engine"]
    found = {path.as_posix() for path in outside for name in source(path).needed if name.startswith("sbon_agent.engine")}

    assert found == {"agent/node.py"}


def test_every_package_is_listed_for_the_wheel():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    packages = [
        ".".join((name, *path.parts[1:-1])) for folder, name in FOLDERS.items() for path in modules(folder) if path.name == "__init__.py"
    ]

    assert settings["package-dir"] == {name: folder for folder, name in FOLDERS.items()}
    assert settings["packages"] == sorted(packages)
