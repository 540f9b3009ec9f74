"""Extensions installed on one agent: names of connectors, and functions that queries may call.

`sbon_agent.extensions` finds installed packages and creates an `Extensions`; the library only reads it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sbon.functions import BatchFunction, FunctionError


def _both(name: str) -> tuple[str, ...]:
    """Returns both kinds, for a connector whose kinds are unknown."""
    return ("source", "sink")


@dataclass(frozen=True)
class Extensions:
    """Connectors and functions by entry point, besides the built-in ones."""

    connectors: tuple[str, ...] = ()
    """Names of connectors, sorted."""
    functions: Mapping[str, Callable[[], BatchFunction]] = field(default_factory=dict)
    """Loaders of functions by name; loading raises FunctionError if the package is broken."""
    offers: Callable[[str], tuple[str, ...]] = field(default=_both)
    """Returns which of "source" and "sink" a connector offers. This loads the connector."""

    def connectors_of(self, kind: str) -> tuple[str, ...]:
        """Returns the names of the connectors that offer a "source", or a "sink"."""
        return tuple(name for name in self.connectors if kind in self.offers(name))

    def function(self, name: str, version: str | None = None) -> BatchFunction:
        """Returns the function of a name, and of a version if one is given.

        Raises
        ------
        FunctionError
            The function is not installed here, has another version, or cannot be loaded.
        """
        load = self.functions.get(name)
        if load is None:
            raise FunctionError(f"function {name} is not installed here; install its package on this machine and restart the agent")
        found = load()
        if version is not None and found.version != version:
            raise FunctionError(f"function {name} is installed here in version {found.version}, the query wants version {version}")
        return found

    def has_function(self, name: str, version: str) -> bool:
        """Tells whether the function can run here."""
        try:
            self.function(name, version)
        except FunctionError:
            return False
        return True


NOTHING = Extensions()
"""No extensions: only built-in connectors and functions."""


def described(extensions: Extensions) -> list[dict[str, str]]:
    """Returns a row for each function, as `sbon functions` shows it, with the error if the function cannot be loaded."""
    rows = []
    for name in sorted(extensions.functions):
        row = {"name": name, "version": "", "call": f"{name}(...)", "takes": "", "gives": "", "problem": ""}
        try:
            function = extensions.function(name)
        except FunctionError as problem:
            rows.append(row | {"problem": str(problem)})
            continue
        defaults = [f"{key} => {_told(wanted)}" for key, wanted in function.arguments.items()]
        takes, gives = (", ".join(f"{key} {kind}" for key, kind in columns.items()) for columns in (function.inputs, function.outputs))
        keys = ["PARTITION BY ..."] if function.is_keyed else []
        call = f"{name}({', '.join(['stream', *keys, *defaults])})"
        rows.append(row | {"version": function.version, "call": call, "takes": takes, "gives": gives})
    return rows


def _told(wanted: object) -> str:
    return wanted.__name__ if isinstance(wanted, type) else repr(wanted)
