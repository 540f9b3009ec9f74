"""An agent that plans filters above all joins: the initial plan in WhiteWater's section 6.4.

It starts like any agent: `python -m sbon_testbed.throughput.as_written ARGUMENT...`.

The planner pushes each filter as far down as it can. This agent moves filters up again before it places the query, so that both orders of
one query can be run and compared.
"""

from collections.abc import Callable

from sbon.query import planner
from sbon.query.estimate import estimate
from sbon.query.moves import moved, moves
from sbon.query.params.joined import JoinParams
from sbon.query.params.rowwise import MapParams
from sbon.query.plan import Build, Plan
from sbon_agent.__main__ import main


def filters_up(plan: Plan) -> Plan:
    """Returns the plan with every filter moved above the joins that it may pass."""
    while True:
        kinds = {spec.id: spec.params for spec in plan.operators}
        up = (one for one in moves(plan) if isinstance(kinds[one.top], JoinParams) and isinstance(kinds[one.bottom], MapParams))
        if (found := next(up, None)) is None:
            return estimate(plan)
        plan = moved(plan, found)


def leave_filters_up(planning_of: Callable[..., tuple[Plan, Build]] = planner.planning) -> None:
    """Makes all agents of this process plan this way, by replacing `planner.planning`, which `planner.plan` calls."""

    def planning(*arguments: object, **named: object) -> tuple[Plan, Build]:
        made, build = planning_of(*arguments, **named)
        return filters_up(made), lambda numbers, turns_us=(): filters_up(build(numbers, turns_us))

    planner.planning = planning


if __name__ == "__main__":
    leave_filters_up()
    raise SystemExit(main())
