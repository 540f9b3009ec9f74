"""Facts about the code's modules, for tests of its rules. Each module is parsed once, and its syntax tree is not kept, to save memory."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Call(NamedTuple):
    """A call in a module: its line, the text of the called expression, and the number of positional arguments."""

    line: int
    called: str
    arguments: int


class Class(NamedTuple):
    """A class in a module, with the numbers of its methods and of the attributes that they set."""

    name: str
    methods: int
    attributes: int


class Source(NamedTuple):
    """One module.

    Attributes
    ----------
    imports : line and name of each absolute import, and of each name taken from a module
    loaded : modules that it imports when it is loaded
    needed : modules that it imports when it is loaded or in functions, not for types alone
    docstrings : line and text of the strings that stand alone as statements
    """

    imports: tuple[tuple[int, str], ...]
    loaded: frozenset[str]
    needed: frozenset[str]
    calls: tuple[Call, ...]
    docstrings: tuple[tuple[int, str], ...]
    classes: tuple[Class, ...]


def modules(folder: str) -> list[Path]:
    """Returns the paths of the modules below a folder, from the root of the tree."""
    return sorted(path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.py"))


@cache
def source(path: Path) -> Source:
    """Returns the facts about a module."""
    body = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    statements = [one for one in body if not (isinstance(one, ast.If) and is_name(one.test, "TYPE_CHECKING"))]
    nodes = [node for one in body for node in ast.walk(one)]
    return Source(
        tuple(imports(nodes)),
        frozenset(imported(statements)),
        frozenset(imported(node for one in statements for node in ast.walk(one))),
        tuple(Call(node.lineno, ast.unparse(node.func), len(node.args)) for node in nodes if isinstance(node, ast.Call)),
        tuple(docstrings(nodes)),
        tuple(classes(nodes)),
    )


def is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def imports(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def docstrings(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def classes(nodes: list[ast.AST]) -> Iterator[Class]:
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            methods = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
            yield Class(node.name, len(methods), len({name for method in methods for name in attributes(method)}))


def attributes(method: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_name(node.value, "self"):
            yield node.attr
