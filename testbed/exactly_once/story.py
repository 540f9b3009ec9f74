"""Runs one seed of two known queries under the simulator's faults, which must not affect their answers.

Two streams feed two of the queries of `sbon_testbed.exactly_once.queries`, which share operators: windows, sessions, first and greatest
rows, joins within intervals and windows, a union. While their rows flow, the faults of `sbon_testbed.simulator.faults` happen that end no
agent: datagrams are lost, doubled and held back, nodes are cut off for longer than their connections last, machines stop or slow down until
credit ends, and operators are moved, several at once and many in vain. In two seeds of five, links spill undelivered batches to disks that
are sometimes slow, full or broken. Half of the queries with keys run in two or three instances, each of which moves by itself. In one seed
of three, a query's home is killed and started again without its statements (`sbon_testbed.exactly_once.home`). In one of three of the other
seeds, a host dies for good, and its operators are placed elsewhere (`sbon_testbed.exactly_once.death`). Answers go to `tail`, or to files
of every format. Every sink must have the rows of a run on one node, in order if the query defines one; the second query, which starts when
rows of the first already flow, must have those after its start. The simulator's checkers that need no workload look on, too.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sbon.config import Layer
from sbon.errors import SbonError
from sbon.query.params.source import SourceParams
from sbon_testbed.exactly_once.compare import difference
from sbon_testbed.exactly_once.death import HEAL_AFTER_S, Death
from sbon_testbed.exactly_once.home import NAME, Home
from sbon_testbed.exactly_once.queries import BEGIN, EARLIEST, PAIRS, QUERIES, ROWS, ROWS_PER_S, SETTLED_S, WITHOUT_KEYS, sources
from sbon_testbed.exactly_once.sinks import FORMATS, Filed, Place, Sink, Watched
from sbon_testbed.leftovers import memory_folder, run_directory
from sbon_testbed.simulator.case import TRACE_LINES, Case
from sbon_testbed.simulator.checkers.base import CaseChecker
from sbon_testbed.simulator.checkers.bounds import Bounds
from sbon_testbed.simulator.checkers.coordinates import Coordinates
from sbon_testbed.simulator.checkers.copies import Copies
from sbon_testbed.simulator.checkers.epochs import Epochs
from sbon_testbed.simulator.checkers.leftovers import Leftovers
from sbon_testbed.simulator.checkers.links import Links
from sbon_testbed.simulator.checkers.members import Members
from sbon_testbed.simulator.checkers.owners import Owners
from sbon_testbed.simulator.faults.kinds import network_of
from sbon_testbed.simulator.faults.schedule import Faults
from sbon_testbed.simulator.harness import World
from sbon_testbed.simulator.network import NetworkConfig
from sbon_testbed.simulator.trial import FoundError, Trial, problem_of

KINDS = (
    *("loss", "duplicates", "reordering", "partitions", "one-way", "slow", "stopped", "disks", "clocks", "moves"),
    *("homes", "deaths"),
)
"""Kinds of faults of the stories."""
PAUSE_S = {"moves": 0.15, "disks": 0.5}
"""Mean virtual seconds between two faults of a kind, where they differ from the simulator's."""
CHECKERS: tuple[Callable[[Case], CaseChecker], ...] = (Links, Copies, Epochs, Owners, Bounds, Coordinates, Members, Leftovers)
VIRTUAL_S_MAX = 300.0
"""Virtual seconds within which every seed must end; otherwise rows are lost."""
STEP_S = 0.3
"""Virtual seconds between two calls of the checkers."""
HOMES_DIE = 1 / 3
"""Share of seeds in which a home dies."""
HOSTS_DIE = 1 / 3
"""Share of the other seeds in which a host dies for good."""
FILED = 1 / 2
"""Share of the queries whose answers go to a file."""
INSTANCES = (1, 1, 2, 3)
"""Numbers of instances; each query draws one of them."""
SPILL = {"spill_bytes": 2**20, "spill_after_s": 0.1}


class Outcome(NamedTuple):
    """The result of one seed."""

    seed: int
    problem: str
    """Description of the first error; empty if every sink has the rows of a run on one node."""
    committed: int
    """Number of migrations that moved their operator."""
    abandoned: int
    """Number of migrations that were abandoned."""
    resent: int
    """Number of batches sent more than once."""
    rows: int
    """Rows at all sinks."""
    trace: tuple[str, ...] = ()
    """Latest lines of the trace; empty if there is no error."""
    spilled_bytes: int = 0
    """Bytes that links wrote to disk."""
    homes: int = 0
    """Number of homes that were killed and came back."""
    dealt: int = 0
    """Number of queries with several instances of operators."""
    deaths: int = 0
    """Number of hosts that died for good, with operators."""
    recovered: int = 0
    """Number of recoveries of queries after such deaths."""


class Run(NamedTuple):
    """One query of a story and its expected rows."""

    name: str
    sink: Sink
    complete_from: datetime
    """Event time from which the query must have all rows."""


def make_world(
    nodes: int,
    seed: int,
    network: NetworkConfig | None = None,
    window_batches: int = 64,
    data_dir: Path | None = None,
    homes: int = 0,
    heal_after_s: float = VIRTUAL_S_MAX,
    *,
    take_over: bool = False,
) -> World:
    """Returns an overlay in which only the story moves operators; the last `homes` nodes host no operators."""
    settings = {
        # By default, successive cuts may keep a node away for longer than inputs and recoveries wait, after which losing rows is correct.
        # With these settings a query makes operators again only if their host no longer has them; a host that is back continues as before.
        "engine": {"batch_interval_s": 0.1, "heal_after_s": heal_after_s, "lost_input_s": VIRTUAL_S_MAX, "take_over": take_over},
        "optimiser": {"enabled": False},
        "telemetry": {"enabled": False},
        "links": {"window_batches": window_batches, **(SPILL if spills(seed) else {})},
        "membership": {"interval_s": 0.5},
        # States are small here, so they are cut into small pieces, and rounds of logged input follow every byte.
        "migration": {"piece_bytes": 1024, "window_bytes": (1, 4096, 2**20)[seed % 3], "rest_bytes": (1, 65_536)[seed % 2]},
    }

    def settings_of(number: int) -> Layer:
        small = {"quantum_rows": 16} if number % 2 else {}  # every other node processes its batches in slices
        return {"engine": {**small, **({"operators_max": 0} if number >= nodes else {})}}

    world = World(nodes + homes, seed=seed, network=network, settings=settings, settings_of=settings_of, data_dir=data_dir)
    world.start_all()
    world.settle()
    return world


def spills(seed: int) -> bool:
    """Tells whether links of this seed have disks."""
    return seed % 5 >= 3


class Story(Case):
    """The run of one seed."""

    def __init__(self, seed: int, chosen: Sequence[str], folder: Path, kinds: Collection[str] = KINDS, *, take_over: bool = False) -> None:
        self._rng = np.random.default_rng([seed, 1])
        self._sink_rng = np.random.default_rng([seed, 3])
        self._deal_rng = np.random.default_rng([seed, 4])
        self.dealt = 0
        """Number of queries with several instances."""
        self.resent = 0
        """Number of batches that operators at the end of the faults have sent more than once."""
        self._hosts_number = int(self._rng.integers(3, 7))
        network, window_batches = network_of(seed, kinds), int(self._rng.integers(1, 9))
        home_dies = bool(self._sink_rng.random() < HOMES_DIE) and "homes" in kinds
        host_dies = not home_dies and bool(np.random.default_rng([seed, 5]).random() < HOSTS_DIE) and "deaths" in kinds
        hosts, heal_after_s = self._hosts_number + int(host_dies), HEAL_AFTER_S if host_dies else VIRTUAL_S_MAX
        world = make_world(hosts, seed, network, window_batches, folder, int(home_dies), heal_after_s, take_over=take_over)
        super().__init__(world, seed, range(hosts))
        self._faults = Faults(self, kinds, PAUSE_S)
        self._trial = Trial(self, self._faults, [make(self) for make in CHECKERS], self._step, STEP_S)
        names = world.nodes
        world.submit(sources(*(names[int(self._rng.integers(self._hosts_number))] for _ in "lr")))
        self._files = 0
        self.runs: list[Run] = []
        self.home: Home | None = None
        for number, name in enumerate(chosen):
            owner = int(self._rng.integers(self._hosts_number))
            if home_dies and number == 0:
                others = [other for other in QUERIES if other != name]
                self._begin_at_home(name, others[int(self._sink_rng.integers(len(others)))])
            else:
                self.runs.append(self._begun(name, owner))
        self.death = Death(self, self._faults, self._hosts_number, self._complete_from) if host_dies else None

    def _begun(self, name: str, owner: int, *, filed: bool | None = None, label: str | None = None, once: bool = False) -> Run:
        """Submits a query, often with several instances of its operators."""
        view, select = self._dealt(name, QUERIES[name].select)
        is_first = not self.runs and self.home is None
        if filed or (filed is None and self._sink_rng.random() < FILED):
            place = self._place()
            query = self._submitted(view + place.sql(label or f"answers{self._files}", select), owner, once=once)
            sink: Sink = Filed(self.world, query, place)
        else:
            query = self._submitted(view + select, owner, once=once)
            sink = Watched(self.world.tail(query, owner))
        self.ids[query] = query
        self.tell("query", f"{name} at {self.world.nodes[owner]}")
        return Run(name, sink, EARLIEST if is_first else self._complete_from(query))

    def _dealt(self, name: str, select: str) -> tuple[str, str]:
        """Returns a view of the query with a drawn number of instances, and the query over the view; no view for a single instance."""
        instances = int(self._deal_rng.choice(INSTANCES))
        if instances == 1 or name in WITHOUT_KEYS:
            return "", select
        self.dealt += 1
        return f"CREATE VIEW dealt{self.dealt} WITH (instances = {instances}) AS {select};\n", f"SELECT * FROM dealt{self.dealt}"

    def _place(self) -> Place:
        """Returns a new file on some host."""
        self._files += 1
        kind = FORMATS[int(self._sink_rng.integers(len(FORMATS)))]
        return Place(self.world, int(self._sink_rng.integers(self._hosts_number)), f"answers{self._files}", kind, "append")

    def _submitted(self, sql: str, owner: int, *, once: bool) -> str:
        """Submits SQL as soon as the owner has heard of the sources."""
        while True:
            try:
                return self.world.submit(sql, at=owner)
            except SbonError:
                if once or self.world.now > VIRTUAL_S_MAX:
                    raise
                self.world.run(STEP_S)

    def _complete_from(self, query: str) -> datetime:
        """Returns the event time that the query's sources have reached, plus a margin."""
        running = [instance for _, instance in self.instances() if isinstance(instance.spec.params, SourceParams)]
        reached = max((i.figures.rows_out for i in running if query in i.users), default=ROWS)
        return BEGIN + timedelta(seconds=reached / ROWS_PER_S + SETTLED_S)

    def recoveries(self) -> int:
        """Returns how often operators of the queries were placed elsewhere."""
        if self.death is None:
            return 0
        records = filter(None, (self.death.record_of(run.sink.query) for run in self.runs))
        return sum(record.health.healing.account.recoveries for record in records)

    def _begin_at_home(self, name: str, other: str) -> None:
        begun = self._begun(name, self._hosts_number, filed=True, label=NAME)
        assert isinstance(begun.sink, Filed)

        def begin_anew(label: str) -> None:
            self.runs.append(self._begun(other, self._hosts_number, filed=True, label=label, once=True))

        self.home = Home(self, self._faults, self._hosts_number, begun.sink, begin_anew)
        self._orphan = begun

    def run(self) -> None:
        """Lets faults happen until all queries have ended, and compares the sinks.

        Raises
        ------
        FoundError
            A sink's rows differ, or a checker has found an error.
        """
        self._trial.trouble(lambda: self._is_over() or self.world.now >= VIRTUAL_S_MAX)
        self.resent = sum(output.sender.batches_resent for _, instance in self.instances() for output in instance.outputs.values())
        self._faults.calm()
        if problem := self.problem():
            raise FoundError(problem)
        self._trial.converge()
        self._trial.converge_without_queries()

    def _is_over(self) -> bool:
        return (self.home is None or self.home.is_done) and all(run.sink.finished for run in self.runs)

    def _step(self) -> None:
        if self.calm_s is None and self.home is not None:
            self.home.step()
        if self.death is not None:
            self.death.step([run.sink.query for run in self.runs])

    def problem(self) -> str:
        """Describes the first sink whose rows differ from those of a run on one node, or the remains of the dead home."""
        for run in self.runs:
            if problem := difference_of(run, self.death):
                return f"{run.name}: {problem}"
        if self.home is not None:
            orphan = self._orphan
            problem = self.home.problem() or difference(orphan.name, orphan.sink.rows(), orphan.complete_from, whole=self.home.is_whole)
            if problem:
                return f"{orphan.name}, whose home has died: {problem}"
        return ""


def difference_of(run: Run, death: Death | None = None) -> str:
    """Describes the error in a sink of a query that should have ended; empty if there is none.

    Parameters
    ----------
    death : the host that has died; None if none has, and the query must have all rows
    """
    if run.sink.problem:
        return run.sink.problem
    rows = run.sink.rows()
    if not run.sink.finished:
        return f"has not ended after {VIRTUAL_S_MAX:g} virtual seconds, with {len(rows)} rows"
    if death is not None:
        return death.problem(run.name, run.sink.query, rows, run.complete_from)
    return difference(run.name, rows, run.complete_from)


def run_seed(seed: int, chosen: Sequence[str] | None = None, kinds: Collection[str] = KINDS, *, take_over: bool = False) -> Outcome:
    """Runs one seed to its end and compares all sinks with the run on one node.

    An exception of an agent is a result, too: the seed has failed.

    Parameters
    ----------
    chosen : names of the queries; chosen by the seed if not given
    kinds : kinds of faults, of `KINDS`
    take_over : whether keepers take queries over
    """
    with run_directory(memory_folder()) as folder:
        made: list[Story] = []

        def go() -> None:
            made.append(Story(seed, chosen or PAIRS[seed % len(PAIRS)], folder, kinds, take_over=take_over))
            made[0].run()

        problem = problem_of(go)
        if not made:
            return Outcome(seed, problem, 0, 0, 0, 0)
        (story,) = made
        return Outcome(
            seed,
            problem,
            story.committed,
            story.abandoned,
            story.resent,
            sum(len(run.sink.rows()) for run in story.runs),
            tuple(story.trace[-TRACE_LINES:]) if problem else (),
            sum(machine.disk.bytes_written for machine in story.world.world.machines),
            int(story.home is not None),
            story.dealt,
            int(story.death is not None and story.death.has_happened),
            story.recoveries(),
        )
