"""The query of 14 operators over visits that a real agent runs: its statements, its work, and the answers that it must give."""

from typing import NamedTuple

import numpy as np

from sbon.types import FloatArray, IntArray
from sbon_testbed.mace.visits import passes, rounds_of

QUARTER_S = 0.25


class Step(NamedTuple):
    """An operator between source and sink: a call of the function, over the union of its inputs."""

    inputs: tuple[str, ...]
    cost: float
    """Mean work of a row, in relative units."""
    keep: float = 1.0
    """Share of the rows that pass."""


STEPS: dict[str, Step] = {
    "projected": Step(("visits",), 0.5),
    "chosen": Step(("projected",), 1.0, 0.8),
    "located": Step(("chosen",), 2.0),  # parts of the URL
    "one_group": Step(("located",), 0.5, 0.5),
    "other_group": Step(("located",), 0.5, 0.5),
    "one_window": Step(("one_group",), 1.5),
    "other_window": Step(("other_group",), 1.5),
    "everyone": Step(("located",), 1.0),
    "one_share": Step(("one_window", "everyone"), 2.0, 0.5),
    "other_share": Step(("other_window", "everyone"), 2.0, 0.5),
    "shares": Step(("one_share", "other_share"), 1.0),
    "computed": Step(("shares",), 3.0),
}
"""Operators by name, upstream first, as in virtual time (`sbon_testbed.mace.virtual.QUERY`). With source and sink they are 14; the sink
takes the last one."""
OPERATORS = len(STEPS) + 2


def work_of_visit() -> float:
    """Returns the mean work of all operators for a row of the source, in relative units."""
    rows, total = {"visits": 1.0}, 0.0
    for name, step in STEPS.items():
        taken = sum(rows[one] for one in step.inputs)
        total += step.cost * taken
        rows[name] = step.keep * taken
    return total


def answers_of(numbers: IntArray) -> IntArray:
    """Returns how many answers the visits with these numbers have: (visits,)."""
    rows = {"visits": np.ones(len(numbers), dtype=np.int64)}
    for place, (name, step) in enumerate(STEPS.items()):
        taken = np.sum([rows[one] for one in step.inputs], axis=0)
        rows[name] = taken * passes(numbers, place, step.keep) if step.keep < 1.0 else taken
    return rows["computed"]


def rounds_for(numbers: IntArray, rounds: float) -> int:
    """Returns the rounds of work that the visits with these numbers take at all operators; `rounds` as for `statements`."""
    rows, total = {"visits": np.ones(len(numbers), dtype=np.int64)}, 0
    for place, (name, step) in enumerate(STEPS.items()):
        taken = np.sum([rows[one] for one in step.inputs], axis=0)
        total += int((taken * rounds_of(numbers, place, _rounds(step, rounds))).sum())
        rows[name] = taken * passes(numbers, place, step.keep) if step.keep < 1.0 else taken
    return total


def _rounds(step: Step, rounds: float) -> int:
    return max(1, round(rounds * step.cost))


def statements(rounds: float, node: str, port: int, rate_per_s: float) -> str:
    """Returns the statements that create the source and the views.

    Parameters
    ----------
    rounds : rounds of work for one unit of cost
    port : port on which the source listens
    rate_per_s : mean rows per second of the source
    """
    options = f"connector = 'tcp', nodes = '{node}', port = {port}, time_unit = 'us', estimated_rows_per_second = {rate_per_s:g}"
    found = [f"CREATE SOURCE visits (ts TIMESTAMP, visit BIGINT, WATERMARK FOR ts AS ts) WITH ({options})"]
    for place, (name, step) in enumerate(STEPS.items()):
        stream = step.inputs[0]
        if len(step.inputs) > 1:
            stream = "(" + " UNION ALL ".join(f"SELECT ts, visit FROM {one}" for one in step.inputs) + ")"
        call = f"visit_step({stream}, {place}, {_rounds(step, rounds)}, {step.keep})"
        found.append(f"CREATE VIEW {name} AS SELECT ts, visit FROM {call}")
    return ";\n".join(found) + ";\n"


def sink(node: str, port: int) -> str:
    """Returns the statement that runs the query: its answers go to a program that listens on the port."""
    return (
        f"CREATE SINK answers AS SELECT ts, visit FROM computed WITH (connector = 'tcp', mode = 'connect', port = {port}, node = '{node}')"
    )


def by_quarter(at_s: FloatArray) -> list[int]:
    """Returns the events of each quarter of a second, from 0 s to the last event."""
    counts = np.bincount((at_s / QUARTER_S).astype(np.int64))
    return [int(one) for one in counts]
