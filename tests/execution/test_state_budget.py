"""The memory of operators' states on one host: which operator must end when it is used up, and when a state is measured."""

import sys
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from sbon.operators.registry import build
from sbon.operators.sizes import held_bytes
from sbon.query.expression import Column
from sbon.query.params.kinds import Params
from sbon.query.params.ordered import DeduplicateParams, TopParams
from sbon.query.params.windowed import SessionParams, WindowParams
from sbon.state.room import StateRoom
from sbon.state_budget import StateBudget
from sbon_agent.memory import usable_bytes
from sbon_testbed.bench.operators import WORKLOADS, _batches, _ports
from sbon_testbed.simulator.disk import VirtualDisk

MB = 1_000_000


@pytest.mark.parametrize(
    ("params", "may_go_to_disk"),
    [
        (WindowParams("t", 10, 10, (("k", Column("k")),), ()), True),
        (WindowParams("t", 10, 10, (), ()), False),
        (SessionParams("t", 10, (("k", Column("k")),), ()), True),
        (SessionParams("t", 10, (), ()), False),
        (DeduplicateParams("t", ("k",), (), (), 10, session=False), True),
    ],
)
def test_a_state_that_may_go_to_disk_may_arrive_though_it_is_larger_than_memory(params: Params, may_go_to_disk: bool):
    budget = StateBudget(100 * MB, StateRoom(VirtualDisk(), MB, 80 * MB, 500 * MB))
    budget.measured("a", 40 * MB)
    assert budget.arriving_bytes(params) == (560 * MB if may_go_to_disk else 60 * MB)


def test_the_largest_state_ends_when_all_together_exceed_the_limit():
    budget = StateBudget(100 * MB)
    assert budget.measured("a", 40 * MB) is None
    assert budget.measured("b", 60 * MB) is None, "the limit itself may be used"
    excess = budget.measured("a", 41 * MB)
    assert excess is not None
    assert excess.operator == "b"
    assert "60.0 MB" in excess.reason
    assert "engine.memory_max" in excess.reason
    assert budget.used_bytes == 41 * MB, "ended operators do not count"
    assert budget.failed == 1


def test_a_host_is_nearly_full_at_four_fifths_until_an_operator_is_forgotten():
    budget = StateBudget(100 * MB)
    budget.measured("a", 80 * MB)
    assert not budget.is_nearly_full
    budget.measured("a", 81 * MB)
    assert budget.is_nearly_full
    assert budget.room_bytes == 19 * MB
    assert budget.would_exceed(20 * MB)
    assert not budget.would_exceed(19 * MB)
    budget.forget("a")
    assert not budget.is_nearly_full
    budget.forget("a")


def test_a_state_is_measured_after_many_batches_or_many_bytes():
    budget = StateBudget(64 * 2**20)
    assert not budget.is_due(63, 2**20 - 1)
    assert budget.is_due(64, 0)
    assert budget.is_due(1, 2**20)
    assert StateBudget(2**40).is_due(1, 64 * 2**20), "also with a large limit"
    assert not StateBudget(1).is_due(1, 64 * 1024 - 1), "also with a small limit"


@pytest.fixture(scope="module")
def batches():
    return _batches(16_384)


@pytest.mark.parametrize("name", [name for name, params in WORKLOADS.items() if not build(params).is_stateless])
def test_the_size_of_every_operators_state_is_near_what_its_snapshot_holds(name, batches):
    params = WORKLOADS[name]
    operator = build(params)
    empty = held_bytes(operator)
    assert empty < 5_000
    for batch in batches[:8]:
        for port in _ports(params):
            operator.process(port, batch)
        if isinstance(params, TopParams):
            operator.advance(0)
    size = held_bytes(operator)
    parts = operator.parts()
    assert parts is not None
    held = sum(frame.estimated_size() for frame in parts.frames.values())
    assert 0.75 * held <= size <= 4 * held + 2 * MB, "includes rows that wait to be aggregated, which may take less than their groups"
    assert 0.95 * held <= held_bytes(operator) <= 4 * held + 2 * MB, "the snapshot has aggregated all rows"


def test_what_users_functions_hold_counts_too():
    class Held:
        __slots__ = ("frames", "last", "seen")

        def __init__(self):
            self.frames = deque([pl.DataFrame({"x": np.zeros(10_000)})] * 3)
            self.seen = {f"key number {i}": [float(i)] for i in range(100_000)}
            self.last = self.seen

    held = Held()
    expected = 80_000 + 100_000 * (64 + 24 + 64) + 4 * MB
    assert 0.6 * expected < held_bytes(held) < 1.6 * expected, "one frame held three times counts once, a large dict by a sample"
    held.frames.append(held)
    assert held_bytes(held) > 0, "measuring a circle ends"


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/app/unit\n", {"app/memory.max": "5000000\n", "app/unit/memory.max": "max\n"}, 5_000_000),
        ("0::/app\n", {"memory.max": "7000000\n"}, 7_000_000),
        ("9:cpu:/\n5:memory:/box\n", {"memory/box/memory.limit_in_bytes": "3000000\n"}, 3_000_000),
        ("0::/../../outside\n", {"memory.max": "6000000\n"}, 6_000_000),
        ("", {}, None),
        ("nonsense\n0::/app\n", {"app/memory.max": "max\n"}, None),
    ],
)
def test_the_memory_that_may_be_used_is_the_least_limit_above_the_process(tmp_path, membership, files, expected):
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "self").write_text(membership)
    machine = usable_bytes(tmp_path / "none", tmp_path / "missing")
    assert machine > 10_000_000
    assert usable_bytes(tmp_path / "cgroup", tmp_path / "self") == (expected or machine)


def test_a_long_chain_of_tuples_is_measured_without_recursion() -> None:
    path: tuple[Any, ...] | None = None
    for place in range(10_000, 15_000):
        path = (path, place)
    holder = SimpleNamespace(path=path)

    one, two = sys.getsizeof((1, 2)), sys.getsizeof(10_000)
    assert held_bytes(holder) == 5_000 * (one + two)
    assert held_bytes(SimpleNamespace(paths=[path, (path, 1)])) < 2 * held_bytes(holder)
