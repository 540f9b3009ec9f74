"""Records which transitions of the state machines' tables the tests of a run cover: `pytest -p tests.transitions`.

A transition is a state, an event, and the next state. Only events that come through a machine's own methods count; a test that calls
`machine._turn(event)` itself covers nothing.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from sbon.transitions import Transitions

MACHINES = {
    "sbon.supervision.deployment": "Deployment",
    "sbon.supervision.inheriting": "",
    "sbon.supervision.owning": "Owning",
    "sbon.supervision.recovery": "Recovery",
    "sbon.supervision.replanning": "Replanning",
    "sbon.migration.coordinator": "Migration",
    "sbon.migration.copy": "Copy",
    "sbon.migration.newcomer": "Newcomer",
    "sbon.optimiser.attempts": "Attempt",
    "sbon.rearranging.leaving": "Leaving",
    "sbon.rearranging.multicast_life": "MulticastLife",
}
"""Modules with a `TABLE`, and the class that follows it; in `inheriting` the function `_turn` follows it."""
FILE = "SBON_TRANSITIONS_FILE"
"""Environment variable with the path of the file to which the missed transitions are written."""

_seen: dict[str, set[tuple[Enum, Any, Enum]]] = {name: set() for name in MACHINES}


def transitions(table: Any) -> Iterator[tuple[Enum, Any, Enum]]:
    """Yields all transitions of a table."""
    if isinstance(table, Transitions):
        yield from ((state, event, then) for state, row in table.rows.items() for event, following in row.items() for then in following)
    else:
        yield from ((state, event, then) for (state, event), then in table.items())


def pytest_configure(config: pytest.Config) -> None:
    for name, kind in MACHINES.items():
        module: Any = importlib.import_module(name)
        if isinstance(module.TABLE, Transitions):
            for event in module.TABLE.events:
                _record_method(name, getattr(module, kind), event)
        else:
            _record_turns(name, getattr(module, kind) if kind else module)


def pytest_unconfigure(config: pytest.Config) -> None:
    missed = {
        name: [f"{state.name} {getattr(event, 'name', event)} {then.name}" for state, event, then in sorted(wanted, key=str)]
        for name, seen in _seen.items()
        if (wanted := set(transitions(importlib.import_module(name).TABLE)) - seen)
    }
    Path(os.environ[FILE]).write_text(json.dumps(missed), encoding="utf-8")


def _record_method(name: str, machine: Any, event: str) -> None:
    """Makes a method that is named after an event record the state before and after each call."""
    inner: Callable[..., Any] = getattr(machine, event)

    def recording(self: Any, *args: Any, **more: Any) -> Any:
        before = _state(self)
        found = inner(self, *args, **more)
        _seen[name].add((before, event, _state(self)))
        return found

    setattr(machine, event, recording)


def _record_turns(name: str, where: Any) -> None:
    """Makes `_turn` record the calls that the library makes; calls by tests do not count."""
    inner: Callable[..., Any] = where._turn

    def recording(machine: Any, event: Any) -> Any:
        before = machine.phase
        found = inner(machine, event)
        if sys._getframe(1).f_globals["__name__"].startswith("sbon."):
            _seen[name].add((before, event, machine.phase))
        return found

    where._turn = recording


def _state(machine: Any) -> Any:
    return machine.phase if hasattr(machine, "phase") else machine.stage
