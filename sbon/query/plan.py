"""The plan of a query: operators, the links between them, and the rates expected on the links.

A plan is a DAG. Operators are listed upstream first. Sources and sinks are pinned to nodes; most other operators are unpinned. An operator
has numbered input ports; a port takes any number of links, whose rows are merged (so that a logical source over many nodes, or a UNION
ALL, needs no operator of its own).

The parameters of an operator say what it does (`sbon.query.params`). Parameters beyond the limits of `sbon.query.limits` cannot be
constructed: the planner refuses the query, and a message with such an operator is not decoded.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from sbon.message_limits import Amount, Epoch, Few, Link, Operator
from sbon.query.limits import INSTANCES_MAX, LimitError, check_count, check_share
from sbon.query.params.joined import JoinParams, WindowJoinParams
from sbon.query.params.kinds import Params
from sbon.query.params.ordered import DeduplicateParams, OverParams, TopParams
from sbon.query.params.windowed import SessionParams, WindowParams
from sbon.schema import Schema
from sbon.types import NodeId, OperatorId, QueryId

LEAVE_OUT, INCOMPLETE = AFTER_CRASH = ("leave_out", "incomplete")
"""Choices for windows, sessions and joins that have lost rows in a crash."""
OMITTING = WindowParams | SessionParams | TopParams | OverParams | DeduplicateParams | JoinParams | WindowJoinParams
"""Operators whose answers need rows of a stretch of event time, or a number of rows, with that choice (`omits_begun`)."""
FINISH, DEFER, SHED = ON_MISS = ("finish", "defer", "shed")
"""Choices for rows that would be late."""


class MissRule(msgspec.Struct, frozen=True, array_like=True):
    """A rule for rows that would be late: an operator leaves them out, or puts them off if it `defers`."""

    latency_ms: float
    """Greatest latency of a row."""
    fairness: float = 0.0
    """Each cost class keeps at least this part of the share that it would keep if all classes lost alike."""

    def __post_init__(self) -> None:
        check_share("latency", self.latency_ms)
        check_share("fairness", self.fairness, 1.0)
        if not self.latency_ms > 0:
            raise LimitError(f"latency of {self.latency_ms} ms, expected above 0")


class Begin(msgspec.Struct, frozen=True, array_like=True):
    """The first answers that an operator gives after a crash has taken its state: earlier ones would lack rows."""

    column: str
    """Output column with an event time."""
    us: int
    """Rows with an earlier event time in that column, in microseconds, are left out."""
    rows: int = 0
    """Number of later rows of each key that are left out, too, because their frames (`OVER`) reach back before that time."""


class OperatorSpec(msgspec.Struct, frozen=True):
    """One operator of a plan: everything a host needs to run it."""

    id: OperatorId
    params: Params
    schema: Schema
    """Output columns; for sinks, the columns that they write."""
    time_column: str | None
    """The output column with the event time; None: there is none."""
    pinned: NodeId | None
    """The node that it must run on; None: the overlay chooses."""
    signature: str
    """Equal for operators that compute the same from the same sources; see `sbon.query.signature`."""
    ports: int = 1
    """Input ports; 0 for sources."""
    selectivity: float = 1.0
    """Expected output rows per input row."""
    on_miss: MissRule | msgspec.UnsetType = msgspec.UNSET
    """Rule for rows that would be late; unset: there is none, and messages have no such field."""
    begin: Begin | msgspec.UnsetType = msgspec.UNSET
    """The first answers given after a crash; unset: all answers are given."""

    def __post_init__(self) -> None:
        check_count("columns", len(self.schema))
        check_count("input ports", self.ports, 0, 2)
        check_share("selectivity", self.selectivity)


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A part of an exchange's rows."""

    index: Few
    of: Few
    """Number of parts."""
    copies: Amount = 1.0
    """Number of parts that a row is in, on average."""

    def __post_init__(self) -> None:
        check_count("parts", self.of, 2, INSTANCES_MAX)
        if not 1 <= self.copies <= self.of:
            raise LimitError(f"{self.copies} copies of a row in {self.of} parts, expected 1 to {self.of}")
        check_count("parts before a part", self.index, 0, self.of - 1)


class LinkSpec(msgspec.Struct, frozen=True):
    """A stream from one operator to a port of another, with the rate expected on it."""

    id: Link
    source: Operator
    target: Operator
    port: Few
    rate_rows_per_s: Amount
    rate_bytes_per_s: Amount
    handed: Epoch = 0
    """Number of times the sending end has moved to a multicast operator or back. If two messages name different sources for the link,
    the message with the greater number is newer."""
    part: Part | None = None
    """The part of the rows of an exchange that the link carries; None: all rows of another operator."""

    @property
    def share(self) -> float:
        """Returns the expected share of the source's rows that the link carries."""
        return 1.0 if self.part is None else self.part.copies / self.part.of


def after_crash(operators: Iterable[OperatorSpec]) -> str | None:
    """Returns the choice for windows, sessions and joins that have lost rows in a crash; None if the operators have none."""
    omits = [spec.params.omits_begun for spec in operators if isinstance(spec.params, OMITTING)]
    return None if not omits else LEAVE_OUT if all(omits) else INCOMPLETE


class ProfilePoint(msgspec.Struct, frozen=True, array_like=True):
    """Rates that the sources of a query are expected to reach together."""

    name: str
    """Name of the target point; empty if there is only one."""
    rates: tuple[tuple[OperatorId, float], ...]
    """Rows per second, of each source that declares them."""


class Sizing(msgspec.Struct, frozen=True, array_like=True):
    """The number of instances of one operator with keys, where the planner has chosen it or has still to choose it."""

    operators: tuple[OperatorId, ...]
    """The instances, in the order of their parts; the operator itself if it has one instance."""
    rate_rows_per_s: float = 0.0
    """Rows into all instances together for which the number was chosen; 0: it has not been chosen yet."""
    cores: float = 0.0
    """Cores that the instances need together at that rate."""
    most: int = 0
    """Greatest number of instances that the nodes have cores for."""
    alone: str = ""
    """If there are several instances: signature of the operator as a single one. Its cost per row is assumed until theirs is measured."""
    turn_us: int = 0
    """Length of a turn if windows are dealt, and it is given or chosen; 0: keys are dealt, or one instance needs none."""


class Exchange(msgspec.Struct, frozen=True, array_like=True):
    """Two operators of a plan that have exchanged places (`sbon.query.moves`)."""

    what: str
    """Digest of both operators before the exchange, to find them in another plan of the same statement."""
    before: str
    """Digest of the plan's streams before the exchange."""


class Changed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Choices made for a plan after its statement was read. Later plans of the query make them, too."""

    instances: int = 0
    """Number of instances of each operator with keys that a person has asked for since; 0: as the statement says."""
    exchanges: tuple[Exchange, ...] = ()
    """Exchanges of operators that lead from the statement's order to the plan's."""


UNCHANGED = Changed()


class Plan(msgspec.Struct, frozen=True):
    """A query ready to be placed."""

    query: QueryId
    name: str
    """Name given by the user (view or sink), or the query id."""
    sql: str
    operators: tuple[OperatorSpec, ...]
    """Upstream before downstream; the last one is the sink."""
    links: tuple[LinkSpec, ...]
    delay_bound_ms: float | None = None
    """Longest network latency from any source to the sink that the author accepts, in milliseconds; None: no bound."""
    max_latency_ms: float | None = None
    """Greatest predicted latency of an answer that the author accepts, in milliseconds; None: no bound."""
    profile: tuple[ProfilePoint, ...] = ()
    """Rates that the plan is to carry; empty: none is declared."""
    sizings: tuple[Sizing, ...] = ()
    """Operators whose number of instances the planner chooses (`instances = 'auto'`), in the order in which they were added."""
    changed: Changed = UNCHANGED


class Build(Protocol):
    """Plans a statement again, from the same catalogue."""

    def __call__(self, numbers: Sequence[int], turns_us: Sequence[int] = (), /) -> Plan:
        """Returns the plan with other numbers of instances of its `sizings`; empty: one instance each.

        Parameters
        ----------
        turns_us : length of a turn for each sizing whose windows are dealt (others are ignored); 0, or empty: short turns
        """
