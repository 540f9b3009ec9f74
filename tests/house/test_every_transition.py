"""The unit tests of each state machine cover every transition of its table, without a virtual world."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.source_code import ROOT, modules
from tests.transitions import FILE, MACHINES

TESTS = {
    "sbon.supervision.deployment": "tests/supervision/test_deployment_machine.py",
    "sbon.supervision.inheriting": "tests/supervision/test_inheriting.py",
    "sbon.supervision.owning": "tests/supervision/test_owning.py",
    "sbon.supervision.recovery": "tests/supervision/test_recovery_machine.py",
    "sbon.supervision.replanning": "tests/supervision/test_replanning_machine.py",
    "sbon.migration.coordinator": "tests/migration/test_migration_coordinator.py",
    "sbon.migration.copy": "tests/migration/test_migration_copy.py",
    "sbon.migration.newcomer": "tests/migration/test_migration_newcomer.py",
    "sbon.optimiser.attempts": "tests/optimiser/test_attempts.py",
    "sbon.rearranging.leaving": "tests/rearranging/test_leaving_machine.py",
    "sbon.rearranging.multicast_life": "tests/rearranging/test_multicast_life.py",
}
STEPPED_THROUGH_BY_PAIRS = {
    "sbon/execution/life.py",
    "sbon/migration/neighbour.py",
    "sbon/supervision/health.py",
}
"""Modules whose tests try every pair of state and event."""


def test_every_transition_of_every_table_is_gone_through(tmp_path: Path) -> None:
    found = tmp_path / "missed.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.transitions", "-p", "no:cacheprovider", *TESTS.values()]

    done = subprocess.run(command, cwd=ROOT, env={**os.environ, FILE: str(found)}, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stdout[-2000:]
    assert json.loads(found.read_text(encoding="utf-8")) == {}


def test_every_machine_with_a_table_is_listed() -> None:
    """`TABLE` in `sbon.wire.authority` and in telemetry has no states, so it is no state machine."""
    have = {path.as_posix() for path in modules("sbon") if "\nTABLE" in (ROOT / path).read_text(encoding="utf-8")}
    machines = {path for path in have if "(Phase." in (text := (ROOT / path).read_text(encoding="utf-8")) or "Transitions(" in text}

    assert set(TESTS) == set(MACHINES)
    listed = {f"{name.replace('.', '/')}.py" for name in MACHINES}
    assert machines <= listed | STEPPED_THROUGH_BY_PAIRS
    assert listed | STEPPED_THROUGH_BY_PAIRS <= have
