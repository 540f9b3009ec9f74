"""The simulator finds deliberate bugs in the protocols, each within 200 seeds."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.mutants.listing import chosen, read_mutants
from tests.mutants.run import Tree

ROOT = Path(__file__).parents[3]
SEEDS = 200
BUGS = [mutant.name for mutant in chosen(read_mutants(), ["simulator"])]
"""Names of the mutants in `tests/mutants/simulator.toml`."""
COMMAND = "from sbon.cli.__main__ import main; main()"


def test_there_are_ten_bugs_to_find() -> None:
    assert len(BUGS) >= 10


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """Returns a copy of the checkout."""
    return Tree(ROOT, tmp_path_factory.mktemp("bugs") / "tree", threading.Event())


@pytest.mark.soak
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_in_a_protocol_is_found(name: str, tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    (bug,) = chosen(read_mutants(), [name])
    path = os.pathsep.join([str(tree.root), str(tree.root / "tests" / "names")])
    with tree.mutated(bug) as applied:
        assert applied, f"{name} is stale"
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, "testbed", "simulate", "--seeds", str(SEEDS), "--stop", "--quiet", "--json", "-"],
            cwd=tree.root,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
    result = json.loads(done.stdout)
    assert done.returncode == 1, f"{result['seeds']} seeds are right with the bug {name}: {bug.why}"
    found = result["failures"][0]
    with capsys.disabled():
        print(f"\n{name}: seed {found['seed']}, {result['seeds']} tried: {found['problem'].splitlines()[0]}")
