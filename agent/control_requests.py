"""Answers the requests that people send to their agent over the control socket. The shapes of the results are in `sbon.control`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

import sbon
from sbon.addresses import format_address
from sbon.control import COMMANDS, ControlReply, ControlRequest, refusal
from sbon.cost.waiting import Waits
from sbon.errors import ConfigError, PlacementError, QueryError, SbonError
from sbon.execution.operator_row import operator_row
from sbon.extensions import described
from sbon.membership.members import Member, MemberStatus
from sbon.query.catalog import did_you_mean, no_query
from sbon.query.params.source import SinkParams
from sbon.query.system import SYSTEM_STREAMS
from sbon.types import NodeId, OperatorId
from sbon_agent.config import LEAVING_S_MAX

if TYPE_CHECKING:
    from sbon_agent.node import Agent

Reply = Callable[[ControlReply], None]
Cancel = Callable[[], None]
SQL_LENGTH_MAX = 1_000_000


class ControlRequests:
    """Answers requests; several may be in progress."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent
        self._answers: dict[str, Callable[[dict[str, Any], Callable[[Any], None]], None]] = {
            "status": self._now(self.status),
            "members": self._now(self.members),
            "functions": self._functions,
            "rtt": self._rtt,
            "operators": self._now(self.operators),
            "queries": lambda arguments, done: agent.queries.owned.all_rows(done, history=arguments.get("history") is True),
            "names": self._now(self.names),
            "submit": self._submit,
            "explain": lambda arguments, done: agent.queries.owned.statements.explain(_text(arguments, "sql"), done),
            "plan": self._plan,
            "drop": self._drop,
            "keys": lambda arguments, done: agent.access.keys.change(_text(arguments, "action"), arguments, done),
            "migrate": self._migrate,
            "replan": lambda arguments, done: agent.queries.owned.statements.replan(_text(arguments, "query"), arguments, done),
            "leave": self._leave,
            "shape": self._shape,
        }

    def answer(self, request: ControlRequest, reply: Reply) -> Cancel:
        """Replies now or later; the returned function ends a stream of replies."""
        try:
            if request.command == "tail":
                return self._tail(request, reply)
            answer = self._answers.get(request.command)
            if answer is None:
                hint = did_you_mean(request.command, COMMANDS)
                raise ConfigError(f"there is no request {request.command!r}" + (f"; {hint}" if hint else ""))
            answer(request.arguments, lambda result: reply(_reply(request.id, result)))
        except SbonError as problem:
            reply(refusal(request.id, problem))
        return lambda: None

    def _now(self, result: Callable[[], Any]) -> Callable[[dict[str, Any], Callable[[Any], None]], None]:
        return lambda arguments, done: done(result())

    def status(self) -> dict[str, Any]:
        """Returns the agent's state and counters."""
        agent, gossip = self._agent, self._agent.network.gossip
        statuses = [member.status for member in gossip.members.values()]
        counters: dict[str, int] = {
            **gossip.counters,
            **{f"membership_{name}": count for name, count in sorted(gossip.machine.counters.items())},
            **{f"coordinate_rejected_{name}": count for name, count in sorted(gossip.localiser.rejected.items())},
            **agent.network.peers.counters,
            **agent.execution.flow.counters,
            **agent.access.authority.counters,
            **agent.execution.migrations.counters,
            **agent.optimisers.multicasting.counters,
            **agent.placement.remembering.counters,
            "catalog_refused": agent.queries.replication.catalog.refused,
            "costs_refused": agent.execution.cost_store.refused,
            **{f"telemetry_{name}": count for name, count in agent.monitoring.telemetry.counters.items()},
        }
        states, spill = agent.execution.operators.room.budget, agent.execution.flow.outgoing.spilling.budget
        return {
            "name": agent.name,
            "address": format_address(agent.network.address),
            "status": "leaving" if agent.optimisers.leaving.begun else gossip.machine.own.status.value,
            "problem": agent.access.keys.problem,
            "incarnation": gossip.machine.incarnation,
            "uptime_s": round(agent.host.now() - agent.monitoring.started_at_s, 3),
            "version": sbon.__version__,
            "labels": dict(agent.config.labels),
            "members": {status.value: statuses.count(status) for status in MemberStatus},
            "coordinate": _coordinate(gossip.localiser.coordinate),
            "median_relative_error": gossip.localiser.median_relative_error(),
            "operators": len(agent.execution.operators.instances),
            "queries": len(agent.queries.owned.records),
            "migrations": list(agent.monitoring.measuring.migrations),
            "counters": counters,
            "data_dir": agent.config.data_dir,
            "processor_waits_ms": _waits(agent.execution.cost_store.waits.waits()),
            "memory": {"state_bytes": states.used_bytes, "limit_bytes": states.limit_bytes},
            "spill": {"used_bytes": spill.used_bytes, "limit_bytes": spill.limit_bytes} if spill is not None else None,
        }

    def _functions(self, arguments: dict[str, Any], done: Callable[[Any], None]) -> None:
        self._agent.host.execute(lambda: described(self._agent.extensions()), done, rows=0)

    def members(self) -> list[dict[str, Any]]:
        """Returns all known members, by name."""
        return [self._member(member) for _, member in sorted(self._agent.network.gossip.members.items())]

    def _member(self, member: Member) -> dict[str, Any]:
        gossip = self._agent.network.gossip
        coordinate = gossip.coordinate_of(member.name)
        return {
            "name": member.name,
            "address": format_address(member.address),
            "status": member.status.value,
            "incarnation": member.incarnation,
            "labels": dict(member.labels),
            "coordinate": None if coordinate is None else _coordinate(coordinate),
            "estimated_rtt_ms": gossip.estimated_rtt_ms(gossip.name, member.name),
            "measured_rtt_ms": 0.0 if member.name == gossip.name else gossip.localiser.measured_rtt_ms(member.name),
        }

    def operators(self) -> list[dict[str, Any]]:
        """Returns the operators that run here."""
        instances = self._agent.execution.operators.instances.values()
        return [operator_row(instance, self._agent.name, self._agent.host.now()) for instance in instances]

    def names(self) -> list[dict[str, Any]]:
        """Returns everything that has a name in SQL, by name: sources, views and sinks of all agents, and system streams."""
        catalog = self._agent.queries.replication.catalog
        entries = [{"name": e.name, "kind": e.kind, "owner": e.owner, "query": e.query} for e in catalog.living.values()]
        streams = [{"name": name, "kind": "system stream", "owner": None, "query": None} for name in SYSTEM_STREAMS]
        return sorted(entries + streams, key=lambda row: str(row["name"]))

    def _rtt(self, arguments: dict[str, Any], done: Callable[[Any], None]) -> None:
        gossip = self._agent.network.gossip
        a, b = _text(arguments, "a"), arguments.get("b")
        first, second = (a, b) if isinstance(b, str) else (gossip.name, a)
        for name in (first, second):
            if name not in gossip.members:
                hint = did_you_mean(name, gossip.members)
                raise ConfigError(f"there is no member {name}; {hint or '`sbon members` lists them'}")
        measured = None
        if gossip.name in (first, second):
            measured = gossip.localiser.measured_rtt_ms(second if first == gossip.name else first)
        coordinates = [gossip.coordinate_of(name) for name in (first, second)]
        done(
            {
                "a": first,
                "b": second,
                "estimated_rtt_ms": gossip.estimated_rtt_ms(first, second),
                "measured_rtt_ms": 0.0 if first == second else measured,
                "error_estimate": max((c.error for c in coordinates if c is not None), default=None),
            }
        )

    def _tail(self, request: ControlRequest, reply: Reply) -> Cancel:
        queries, resuming = self._agent.queries.owned, self._agent.queries.resuming
        name, limit = _text(request.arguments, "query"), request.arguments.get("limit")
        record = queries.find(name)
        tail = queries.register.tails.get(record.id if record is not None else queries.register.tail_of(name))
        if record is None and tail is None:
            if (waiting := resuming.find(name)) is not None:
                raise QueryError(f"query {name} does not run: {resuming.reason_of(waiting.id)}", hint="`sbon queries` shows when it does")
            if kind := self._agent.queries.replication.catalog.kind_of(name):
                raise no_query(name, kind, f"submit SELECT * FROM {name}, and follow that")
            known = [r.id for r in queries.records.values()] + [r.name for r in queries.records.values()]
            raise QueryError(
                f"{self._agent.name} has taken no query {name}", hint=did_you_mean(name, known) or "ask the agent that took it"
            )
        if tail is None:
            assert record is not None
            params = record.plan.operators[-1].params
            taker = params.connector if isinstance(params, SinkParams) else "tail"
            if taker == "tail" or not record.sink_node:
                raise QueryError(f"query {name} has ended, and its rows are no longer kept", hint="submit it again")
            hint = "to follow the rows here, submit its SELECT without CREATE SINK"
            raise QueryError(f"the rows of {record.name} go to '{taker}' on {record.sink_node}", hint=hint)
        left = limit if isinstance(limit, int) and limit >= 0 else None
        over = False
        cancel: list[Cancel] = []

        def rows(piece: list[list[Any]] | None) -> None:
            nonlocal left, over
            if over:
                return
            piece_left = piece if piece is None or left is None else piece[:left]
            if left is not None and piece_left is not None:
                left -= len(piece_left)
            over = piece is None or left == 0
            reply(ControlReply(request.id, final=over, result={"columns": tail.columns, "rows": piece_left or []}))
            if over and cancel:
                cancel[0]()

        if left == 0:
            rows([])
            return lambda: None
        cancel.append(tail.watch(rows))
        if over:
            cancel[0]()
        return cancel[0]

    def _submit(self, arguments: dict[str, Any], done: Callable[[Any], None]) -> None:
        if self._agent.optimisers.leaving.begun:
            raise PlacementError(f"{self._agent.name} is leaving and takes no more statements; give them to another agent")
        self._agent.queries.owned.statements.submit(_text(arguments, "sql"), done)

    def _plan(self, arguments: dict[str, Any], done: Callable[[Any], None]) -> None:
        options = arguments.get("options", {})
        if not isinstance(options, dict):
            raise ConfigError(f"options = {options!r}, expected a table")
        self._agent.queries.owned.statements.ask(_text(arguments, "sql"), _text(arguments, "question"), options, done)

    def _drop(self, arguments: dict[str, Any], done: Callable[[Any], None]) -> None:
        name = _text(arguments, "query")
        record = self._agent.queries.owned.find(name)
        dropped = {"dropped": [record.id if record is not None else name]}
        self._agent.queries.owned.dropping.drop(name, lambda problem: done(problem or dropped))

    def _migrate(self, arguments: dict[str, Any], done: Callable[[Any], None]) -> None:
        agent, operator, node = self._agent, _text(arguments, "operator"), _text(arguments, "node")
        instance = agent.execution.operators.instances.get(operator)
        if instance is None:
            there = self._elsewhere(operator)
            if there:
                raise ConfigError(f"operator {operator} is on {there}, not on {agent.name}; ask the agent there (`--socket`)")
            hint = did_you_mean(operator, agent.execution.operators.instances) or "`sbon queries` shows where operators are: ask there"
            raise ConfigError(f"operator {operator} is not on {agent.name}; {hint}")
        if not instance.movable:
            raise ConfigError(f"operator {operator} is pinned to {agent.name}: sources and sinks stay where they are")
        member = agent.network.gossip.members.get(node)
        if member is None or member.status is not MemberStatus.ALIVE:
            hint = did_you_mean(node, agent.network.gossip.alive_labels())
            raise ConfigError(f"there is no living member {node}; {hint or '`sbon members` lists them'}")
        agent.execution.migrations.migrate(operator, node, "requested by a user", lambda record: done(msgspec.to_builtins(record)))

    def _elsewhere(self, operator: OperatorId) -> NodeId:
        """Returns another host that runs an operator; empty if this agent knows none. It knows the hosts of its queries' operators, of
        operators that it hosted, and of operators at the other ends of its links.
        """
        agent = self._agent
        nodes = [record.nodes[operator] for record in agent.queries.owned.records.values() if operator in record.nodes]
        gone = agent.execution.flow.ends.place(operator)
        nodes += [gone[0]] if gone is not None else []
        for instance in agent.execution.operators.instances.values():
            nodes += [incoming.node for incoming in instance.inputs.values() if incoming.link.source == operator]
            nodes += [output.node for output in instance.outputs.values() if output.link.target == operator]
        return next((node for node in nodes if node != agent.name), "")

    def _leave(self, arguments: dict[str, Any], done: Callable[[Any], None]) -> None:
        agent = self._agent
        agent.leave(lambda: done({"left": True, **agent.optimisers.leaving.summary()}), _leaving_s(arguments.get("within_s")))

    def _shape(self, arguments: dict[str, Any], done: Callable[[Any], None]) -> None:
        raise ConfigError("this agent's network cannot be shaped: the testbed must have started the agent for that")


def _reply(request_id: int, result: Any) -> ControlReply:
    return refusal(request_id, result) if isinstance(result, SbonError) else ControlReply(request_id, final=True, result=result)


def _text(arguments: dict[str, Any], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str) or not value.strip() or len(value) > SQL_LENGTH_MAX:
        raise ConfigError(f"argument {name!r} is missing or not a text of at most {SQL_LENGTH_MAX} characters")
    return value


def _leaving_s(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LEAVING_S_MAX:
        raise ConfigError(f"within_s = {value!r}, expected 0 to {LEAVING_S_MAX:g} seconds")
    return float(value)


def _waits(waits: Waits | None) -> dict[str, float] | None:
    return None if waits is None else {"mean": round(waits.usual_s() * 1e3, 3), "longest": round(waits.longest_s() * 1e3, 3)}


def _coordinate(coordinate: Any) -> dict[str, Any]:
    return {
        "vector": list(coordinate.vector),
        "height_ms": coordinate.height_ms,
        "error": coordinate.error,
        "load_ms": coordinate.load_ms,
    }
