"""What the structure of the tree may not have, or must have less of: circles of imports, large classes, protocol logic in `agent/`.

The numbers and lists here may only shrink. Whoever makes one smaller writes the smaller one down.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = {"sbon": "sbon", "agent": "sbon_agent", "testbed": "sbon_testbed"}
"""Folders of the code, with the names by which they are imported."""

INPUT_OUTPUT = {
    *("asyncio", "concurrent", "ctypes", "fcntl", "io", "mmap", "multiprocessing", "os", "pathlib", "resource", "select", "selectors"),
    *("shutil", "signal", "socket", "ssl", "subprocess", "tempfile", "threading", "time"),
    *("aiomqtt", "paho", "uvloop"),
}
"""Modules that reach outside; whoever imports one of them does I/O."""
WIRING = {
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
LINES_WITHOUT_IO_MAX = 2_230
"""In modules of `agent/` that do no I/O of their own: connectors, the engine's entry, requests of the command line."""
WITHOUT_IO = {
    "agent/connectors/",
    "agent/control_requests.py",
    "agent/engine/building.py",
    "agent/engine/engine.py",
    "agent/extensions.py",
    "agent/measuring.py",
    "agent/network/shaped_stream.py",
    "agent/periodic.py",
    "agent/shutdown.py",
}
"""Folders and modules of `agent/` in which those lines are. Another one is protocol logic, and belongs into `sbon/`."""
METHODS_MAX = 25
ATTRIBUTES_MAX = 20
LARGE_CLASSES = {
    "Agent",
    "AsyncioHost",
    "Connection",
    "FullOptimiser",
    "HttpSink",
    "LinkSender",
    "MembershipWorld",
    "Migration",
    "Peers",
    "ProcessWorld",
    "Roster",
    "Scalars",
    "ShapedHost",
    "World",
}
IN_CIRCLES = {
    "sbon.arrays",
    "sbon.extensions",
    "sbon.framing",
    "sbon.functions",
    "sbon.handshake",
    "sbon.links",
    "sbon.misfits",
    "sbon.operators",
    "sbon.query",
    "sbon.wire",
}
"""Packages that import each other in circles today."""


def modules(folder: str) -> list[Path]:
    return sorted(path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.py"))


def tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def is_for_types_only(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imported(body: list[ast.stmt], *, late: bool = True) -> Iterator[str]:
    """Names of the modules that these statements import when they run; `late`: inside functions, too."""
    for statement in body:
        if is_for_types_only(statement):
            continue
        nodes = ast.walk(statement) if late else iter([statement])
        for node in nodes:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module


def does_io(path: Path) -> bool:
    """Whether a module reaches outside: by what it imports, or by opening files."""
    found = tree(path)
    opens = any(isinstance(node, ast.Call) and ast.unparse(node.func) == "open" for node in ast.walk(found))
    return opens or any(name.split(".")[0] in INPUT_OUTPUT for name in imported(found.body))


def package_of(module: str) -> str:
    """The folder that a module is in, for the overlay's three top folders; a module directly in one of them is a package of its own."""
    return ".".join(module.split(".")[:2])


def packages() -> dict[str, set[str]]:
    """Which other packages each package imports when it is loaded."""
    found: dict[str, set[str]] = {}
    for folder, name in FOLDERS.items():
        for path in modules(folder):
            here = package_of(".".join([name, *path.with_suffix("").parts[1:]]))
            theirs = {package_of(one) for one in imported(tree(path).body, late=False) if one.split(".")[0] in FOLDERS.values()}
            found.setdefault(here, set()).update(theirs - {here})
    return found


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The sets of packages of which each reaches each other."""

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


def classes() -> Iterator[tuple[str, int, int]]:
    """All classes of the code, with the numbers of their methods and of the attributes that their methods set."""
    for folder in FOLDERS:
        for path in modules(folder):
            for node in ast.walk(tree(path)):
                if isinstance(node, ast.ClassDef):
                    methods = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
                    yield node.name, len(methods), len(set(attributes(methods)))


def attributes(methods: list[ast.FunctionDef | ast.AsyncFunctionDef]) -> Iterator[str]:
    for method in methods:
        for node in ast.walk(method):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
                yield node.attr


def test_packages_do_not_import_each_other_in_circles():
    assert {package for circle in circles(packages()) for package in circle} <= IN_CIRCLES


def test_protocols_leave_the_agent():
    """A module of `agent/` without I/O of its own is protocol logic or arithmetic, and belongs into `sbon/`."""
    free = {
        path: len((ROOT / path).read_text(encoding="utf-8").splitlines())
        for path in modules("agent")
        if not does_io(path) and path.as_posix() not in WIRING
    }

    assert sum(free.values()) <= LINES_WITHOUT_IO_MAX, sorted(free.items(), key=lambda one: -one[1])[:20]
    assert [path for path, lines in free.items() if lines > 1 and not path.as_posix().startswith(tuple(WITHOUT_IO))] == []


def test_no_class_knows_too_much():
    large = {name for name, methods, attributes in classes() if methods > METHODS_MAX or attributes > ATTRIBUTES_MAX}

    assert large <= LARGE_CLASSES


def test_the_overlay_imports_nothing_of_the_built_in_engine():
    """An engine of another kind takes its place (`tests/simulation/test_another_engine.py`)."""
    outside = [path for path in modules("agent") if path.parts[1] != "engine"]
    found = {path.as_posix() for path in outside for name in imported(tree(path).body) if name.startswith("sbon_agent.engine")}

    assert found == {"agent/node.py"}
