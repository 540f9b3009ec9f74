"""One simulated seed: a phase with faults, during which no error may occur, and a phase without, during which everything must converge."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from sbon.supervision.record import QueryState
from sbon_testbed.leftovers import memory_folder, run_directory
from sbon_testbed.simulator.case import TRACE_LINES
from sbon_testbed.simulator.checkers.base import CaseChecker
from sbon_testbed.simulator.checkers.bounds import Bounds
from sbon_testbed.simulator.checkers.coordinates import Coordinates
from sbon_testbed.simulator.checkers.copies import Copies
from sbon_testbed.simulator.checkers.crashes import Crashes
from sbon_testbed.simulator.checkers.epochs import Epochs
from sbon_testbed.simulator.checkers.leftovers import Leftovers
from sbon_testbed.simulator.checkers.links import Links
from sbon_testbed.simulator.checkers.members import Members
from sbon_testbed.simulator.checkers.owners import Owners
from sbon_testbed.simulator.checkers.rows import Rows
from sbon_testbed.simulator.checkers.tcp import Tcp
from sbon_testbed.simulator.dealt_queries import with_dealer
from sbon_testbed.simulator.faults.kinds import KINDS, network_of
from sbon_testbed.simulator.faults.schedule import Faults
from sbon_testbed.simulator.faults.settings import kills_of, settings_of
from sbon_testbed.simulator.harness import World
from sbon_testbed.simulator.reference import make_reference
from sbon_testbed.simulator.run_state import Run
from sbon_testbed.simulator.tcp_traffic import ALLOWED, FILES, draw_tcp
from sbon_testbed.simulator.trial import LOOK_S, FoundError, Trial, problem_of
from sbon_testbed.simulator.workload import make_workload

CHECKERS: tuple[Callable[[Run], CaseChecker], ...] = (
    Links,
    Copies,
    Epochs,
    Owners,
    Bounds,
    Coordinates,
    Rows,
    Crashes,
    Tcp,
    Members,
    Leftovers,
)
FAULTS_S = 14.0
"""Virtual seconds with faults: somewhat longer than the streams."""
SUBMITTED_S = 60.0


class Outcome(NamedTuple):
    """The result of one seed."""

    seed: int
    problem: str
    """Description of the error; empty if there is none."""
    trace: tuple[str, ...]
    """Latest lines of the trace; empty if there is no error."""
    rows: int = 0
    committed: int = 0
    """Number of migrations that moved their operator."""
    abandoned: int = 0
    """Number of migrations that were abandoned."""
    harmed: int = 0
    """Number of queries that lost something when an agent ended."""
    inexact: tuple[str, ...] = ()
    """Harmed queries whose owners do not know exactly how many rows are lost, with their reasons."""
    virtual_s: float = 0.0


def simulate(seed: int, kinds: Collection[str] = KINDS, connectors: Collection[str] = FILES, *, dealt: bool = False) -> Outcome:
    """Runs one seed.

    An exception of an agent is a result, too: the seed has failed.

    Parameters
    ----------
    kinds : kinds of faults, of `sbon_testbed.simulator.faults.KINDS`
    connectors : connectors of the workload, of `sbon_testbed.simulator.tcp_traffic.CONNECTORS`
    dealt : adds a query whose windows a dealer deals to several instances
    """
    with run_directory(memory_folder()) as folder:
        made: list[Simulation] = []

        def go() -> None:
            made.append(Simulation(seed, kinds, folder, connectors, dealt=dealt))
            made[0].go()

        problem = problem_of(go)
        if not made:
            return Outcome(seed, problem, ())
        simulation, run = made[0], made[0].run
        simulation.close()
        rows = sum(map(len, run.reference.rows.values()))
        trace = tuple(run.trace[-TRACE_LINES:]) if problem else ()
        return Outcome(seed, problem, trace, rows, run.committed, run.abandoned, len(run.harmed), tuple(simulation.inexact), run.world.now)


class Simulation:
    """The run of one seed."""

    def __init__(self, seed: int, kinds: Collection[str], folder: Path, connectors: Collection[str], *, dealt: bool = False) -> None:
        workload = with_dealer(make_workload(seed)) if dealt else make_workload(seed)
        reference = make_reference(workload, folder / "one")
        tcp = draw_tcp(workload, reference, folder / "fed") if "tcp" in connectors else []
        self._network, settings = network_of(seed, kinds), settings_of(seed, kinds)
        if tcp:
            settings = {**settings, **ALLOWED}
        world = World(workload.topology, seed=seed, settings=settings, data_dir=folder / "all")
        if kills_of(seed, kinds):  # one home, so that other agents can be killed while the queries are still watched
            home = reference.queries[0].owner
            reference = reference._replace(queries=tuple(asked._replace(owner=home) for asked in reference.queries))
            tcp = [query._replace(asked=query.asked._replace(owner=home)) for query in tcp]
        names = {query.asked.name for query in tcp}
        filed = tuple(asked for asked in reference.queries if asked.name not in names)
        workload = workload._replace(queries=(*filed, *(query.asked for query in tcp)))
        self.run = Run(workload, reference._replace(queries=filed), world, tcp)
        self._faults = Faults(self.run, [kind for kind in kinds if kind != "kills" or kills_of(seed, kinds)])
        self._trial = Trial(self.run, self._faults, [make(self.run) for make in CHECKERS], self.run.watch_ends)
        self.inexact: list[str] = []

    def go(self) -> None:
        """Runs both phases.

        Raises
        ------
        FoundError
            A checker has found an error.
        """
        if self.run.reference.problem:
            raise FoundError(self.run.reference.problem)
        self._begin()
        self._make_trouble()
        self._converge()

    def close(self) -> None:
        """Ends all agents."""
        self.run.world.close()

    def _begin(self) -> None:
        """Starts the agents and the queries, without faults."""
        run, world = self.run, self.run.world
        world.start_all()
        world.settle()
        world.submit(run.workload.declare(world), at=0)
        for asked in run.reference.queries:
            run.ids[asked.name] = self._submitted(asked.sql(world.nodes), asked.owner)
            run.tell("query", f"{asked.name} at {world.nodes[asked.owner]}, sink on {world.nodes[asked.sink]}: {asked.query.ours}")
        for one in run.traffic:
            run.ids[one.asked.name] = self._submitted(one.sql(), one.asked.owner)
            run.tell("query", f"{one.asked.name} at {world.nodes[one.asked.owner]}, sink on {world.nodes[one.asked.sink]}: {one.sql()}")
            if one.feeder is not None:
                one.feeder.begin()
        world.world.network.config = self._network

    def _submitted(self, sql: str, owner: int) -> str:
        """Submits statements as soon as their agent has heard of the sources."""
        world, until = self.run.world, self.run.world.now + SUBMITTED_S
        while not {f"{name}{suffix}" for name in self.run.workload.sources for suffix in ("", "2")} <= {
            entry["name"] for entry in world.ask(owner, "names")
        }:
            if world.now >= until:
                raise FoundError(f"{world.nodes[owner]} has not heard of the sources after {SUBMITTED_S:g} s")
            world.run(LOOK_S)
        return world.submit(sql, at=owner)

    def _make_trouble(self) -> None:
        until = self.run.world.now + FAULTS_S
        self._trial.trouble(lambda: self.run.world.now >= until)

    def _converge(self) -> None:
        self._faults.calm()
        self._trial.converge()
        self._note_inexact()
        self._drop_all()
        self._trial.converge_without_queries()

    def _note_inexact(self) -> None:
        for name in sorted(self.run.harmed):
            record = self.run.record_of(name)
            if record is not None and not record.health.healing.account.is_exact:
                self.inexact.append(f"{name}: {record.reason}")

    def _drop_all(self) -> None:
        """Drops the queries that still run."""
        run = self.run
        for asked in run.workload.queries:
            record = run.record_of(asked.name)
            if record is not None and record.state is not QueryState.FINISHED:
                run.tell("drop", asked.name)
                run.world.ask(record.owner, "drop", query=record.id)
