"""Collects the operators and links of one plan. Equal operators are made once; operators with keys may get several instances."""

from collections.abc import Sequence

import msgspec

from sbon.errors import QueryError
from sbon.links.link_names import link_id
from sbon.query.instances import Asked, dealing_of, dealing_of_windows, even_turn_us
from sbon.query.options import AUTO, WINDOW, Wishes
from sbon.query.params.kinds import Params, may_miss
from sbon.query.params.matched import MatchParams
from sbon.query.params.streams import UnionParams, told_column
from sbon.query.plan import DEFER, SHED, LinkSpec, MissRule, OperatorSpec, Part, Sizing
from sbon.query.projection import free_name
from sbon.query.relation import Relation
from sbon.query.signature import of_part, signature
from sbon.schema import ColumnType, Field, Schema
from sbon.types import NodeId, OperatorId, QueryId

AT_INSTANCES = 0.5
"""Share of `max_latency` that a row may take at an instance if a dealer is asked; batches, links and the merger have the rest."""
UNBOUNDED_S = 1e6
"""The bound of a dealer that keeps none."""
OPERATORS_MAX = 5_000
"""Most operators of one plan; a query over more sources is refused."""


class Wiring:
    """Operators and links of one plan; equal operators are created once.

    Parameters
    ----------
    numbers : number of instances of each of `sizings`; empty: one each
    turns_us : for each of `sizings`, the length of a turn if its windows are dealt; 0, or empty: short turns
    """

    def __init__(self, query: QueryId, wishes: Wishes, numbers: Sequence[int], turns_us: Sequence[int] = ()) -> None:
        self.operators: list[OperatorSpec] = []
        self.links: list[LinkSpec] = []
        self.sizings: list[Sizing] = []
        """Operators whose number of instances the planner chooses."""
        self.dealt = False
        """True if some operator has several instances, or may have."""
        self.rates: dict[OperatorId, float] = {}
        """Rows per second of sources."""
        self._query = query
        self._instances = 1 if wishes.instances is None else wishes.instances
        self._numbers, self._turns_us = numbers, turns_us
        self._by_window = wishes.dealing == WINDOW and self._instances != 1
        self._turn_us = None if wishes.turn_ms is None else max(1, round(wishes.turn_ms * 1000))
        self._dealer, self._latency_ms = wishes.asks, wishes.latency_ms
        self.windows_dealt = False
        """True if windows of a pattern are dealt."""
        self._defers = wishes.on_miss == DEFER
        self._rule: MissRule | None = None
        if wishes.on_miss in (DEFER, SHED) and wishes.latency_ms is not None:
            self._rule = MissRule(wishes.latency_ms, wishes.fairness or 0.0)
        self._streams: dict[OperatorId, str] = {}
        """For merges, the signature of the operator as one instance, for signatures that do not depend on the number of instances."""
        self._made: dict[tuple[str, NodeId | None], OperatorSpec] = {}

    def add(
        self,
        params: Params,
        schema: Schema,
        time_column: str | None,
        inputs: Sequence[Sequence[OperatorSpec]],
        pinned: NodeId | None,
        place: str = "",
        part: Part | None = None,
    ) -> OperatorSpec:
        """Adds an operator with its input links, or returns an equal one that exists. With `part`, it reads this part of its exchanges."""
        feeds = [self._without_twins(port) for port in inputs]
        rule = self._rule_of(params)
        digest = self._signature(params, schema, feeds, place, part)
        made = self._made.get((digest, pinned))
        if made is not None:
            return made
        if len(self.operators) >= OPERATORS_MAX:
            raise QueryError(f"the query needs more than {OPERATORS_MAX} operators", hint="name fewer nodes or labels")
        name = f"{self._query}.{len(self.operators)}"
        operator = OperatorSpec(name, params, schema, time_column, pinned, digest, len(inputs), on_miss=rule or msgspec.UNSET)
        for port, branches in enumerate(feeds):
            for branch in branches:
                name = link_id(branch.id, operator.id, port)
                self.links.append(LinkSpec(name, branch.id, operator.id, port, self.rates.get(branch.id, 0.0), 0.0, part=part))
        self.operators.append(operator)
        self._made[digest, pinned] = operator
        return operator

    def add_keyed(self, params: Params, relation: Relation, sides: Sequence[Sequence[OperatorSpec]]) -> OperatorSpec:
        """Adds an operator, or, if it has keys and the query several instances, its instances between exchanges and a merge."""
        schema, time = relation.schema, time_of(relation)
        by_window = self._by_window and isinstance(params, MatchParams)
        number, turn_us = self._instances, self._turn_us
        if number == AUTO:
            place = len(self.sizings)
            number = self._numbers[place] if place < len(self._numbers) else 1
            turn_us = turn_us or (self._turns_us[place] if place < len(self._turns_us) else 0)
        dealt = dealing_of(params, schema, time) if self._instances != 1 and not by_window else None
        if by_window:
            assert isinstance(params, MatchParams)
            asked = self._asked(sides[0])
            if asked is not None:
                turn_us = self._turn_us or even_turn_us(params, max(2, number))
            elif not turn_us and self._instances == AUTO:
                turn_us = even_turn_us(params, number)
            dealt = dealing_of_windows(params, schema, max(2, number), turn_us, asked)
            self.windows_dealt = True
        if dealt is None:
            return self.add(params, schema, time, sides, None)
        self.dealt = True
        if number == 1:
            only = self.add(params, schema, time, sides, None)
            self.sizings.append(Sizing((only.id,), turn_us=(self._turn_us or 0) if by_window else 0))
            return only
        sides = [self._without_twins(side) for side in sides]
        alone = self._signature(params, schema, sides)
        ports: list[list[OperatorSpec]] = []
        for port, side in enumerate(sides):
            exchange = dealt.exchange(port, number)
            if dealt.asked is not None:
                ports.append([self._splitter(exchange, dealt.asked, side)])
                continue
            # An exchange runs on the node of its branch, from where each row goes straight to its instance.
            ports.append([self.add(exchange, one.schema, one.time_column, [[one]], one.pinned) for one in side])
        instances = []
        for index in range(number):
            own, part = dealt.part(index, number)
            instances.append(self.add(own, dealt.schema, dealt.time_column, ports, None, part=part))
        if self._instances == AUTO:
            turn_us = 0 if dealt.turns is None else dealt.turns.turn_us
            self.sizings.append(Sizing(tuple(one.id for one in instances), alone=alone, turn_us=turn_us))
        merge = self.add(dealt.merge, schema, time, [instances], None)
        self._streams[merge.id] = alone
        return merge

    def _asked(self, side: Sequence[OperatorSpec]) -> Asked | None:
        """Returns the dealer that splitters ask; None if instances take turns."""
        if self._dealer is None:
            return None
        bound_s = self._latency_ms * AT_INSTANCES / 1e3 if self._latency_ms is not None else UNBOUNDED_S
        names = [column.name for column in side[0].schema]
        taken = [*names, *(name.removesuffix(told_column("")) for name in names)]
        return Asked(self._dealer, bound_s, free_name("opens window", taken))

    def _splitter(self, params: Params, asked: Asked, side: Sequence[OperatorSpec]) -> OperatorSpec:
        """Adds the one splitter of all branches of a port: it alone asks the dealer."""
        one = side[0] if len(side) == 1 else self.add(UnionParams(), side[0].schema, side[0].time_column, [side], None)
        added = Field(asked.opens, ColumnType.BOOL), Field(told_column(asked.opens), ColumnType.TEXT)
        return self.add(params, (*one.schema, *added), one.time_column, [[one]], one.pinned)

    def _signature(
        self, params: Params, schema: Schema, feeds: Sequence[Sequence[OperatorSpec]], place: str = "", part: Part | None = None
    ) -> str:
        signed = [[of_part(self._streams.get(one.id, one.signature), part) for one in port] for port in feeds]
        return signature(params, schema, signed, place, self._rule_of(params))

    def _rule_of(self, params: Params) -> MissRule | None:
        return self._rule if may_miss(params, defers=self._defers) else None

    def _without_twins(self, branches: Sequence[OperatorSpec]) -> list[OperatorSpec]:
        """Returns the branches of a port; a repeated branch goes through a union, because two links between the same ends would be one."""
        counts: dict[str, int] = {}
        distinct = []
        for branch in branches:
            counts[branch.id] = counts.get(branch.id, 0) + 1
            if counts[branch.id] > 1:
                twin = f"twin {counts[branch.id]}"
                branch = self.add(UnionParams(), branch.schema, branch.time_column, [[branch]], branch.pinned, twin)
            distinct.append(branch)
        return distinct


def time_of(relation: Relation) -> str | None:
    """Returns the event time of a stream; for a join, the left one if both exist."""
    return next((name for name, base in sorted(relation.times.items(), key=lambda t: _position(relation, t[0])) if base == (name, 0)), None)


def _position(relation: Relation, name: str) -> int:
    return next(index for index, column in enumerate(relation.schema) if column.name == name)
