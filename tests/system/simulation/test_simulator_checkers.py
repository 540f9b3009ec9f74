"""Each checker of the simulator finds its kind of error, and nothing else."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sbon.cost_space.coordinate import ORIGIN, Coordinate
from sbon.execution.life import State
from sbon.links.config import LinkConfig
from sbon.links.receiver import LinkReceiver
from sbon.links.sender import LinkSender
from sbon.membership.members import MemberStatus
from sbon.supervision import owners
from sbon.supervision.account import Account
from sbon.supervision.continuation import Continuation
from sbon.supervision.generations import GENERATION
from sbon.supervision.owning import Phase
from sbon.supervision.record import QueryState
from sbon.supervision.recovery import Recovered
from sbon_testbed.random_queries.parts import Query
from sbon_testbed.simulator.checkers.bounds import Bounds
from sbon_testbed.simulator.checkers.coordinates import Coordinates
from sbon_testbed.simulator.checkers.copies import Copies
from sbon_testbed.simulator.checkers.crashes import Crashes, unsaid
from sbon_testbed.simulator.checkers.epochs import Epochs
from sbon_testbed.simulator.checkers.leftovers import Leftovers
from sbon_testbed.simulator.checkers.links import Links
from sbon_testbed.simulator.checkers.members import Members
from sbon_testbed.simulator.checkers.owners import Owners
from sbon_testbed.simulator.checkers.rows import Rows
from sbon_testbed.simulator.run_state import Run
from sbon_testbed.simulator.workload import Asked

WINDOW = LinkConfig(window_batches=2)
LINK = "a>b"
QUERY = "n0.abc.01"


class Agents:
    """Replaces a run by hand-written agents with operators."""

    def __init__(self, *operators: tuple[str, Any], members: Sequence[str] = ("n0", "n1")) -> None:
        self.world = SimpleNamespace(
            nodes=("n0", "n1"),
            world=SimpleNamespace(machines=[SimpleNamespace(disk=SimpleNamespace(used_bytes=0, names=list)) for _ in range(2)]),
            data_dir_of=lambda number: Path("nowhere"),
        )
        self.harmed: dict[str, str] = {}
        self.calm_s = None
        self.made = [make_agent(name, [i for there, i in operators if there == name], members) for name in ("n0", "n1")]

    def agents(self) -> Any:
        return enumerate(self.made)

    def is_submitted_again(self, name: str) -> bool:
        return False

    def record_of(self, name: str) -> Any:
        return self.made[0].queries.owned.find("q1")

    def instances(self) -> Any:
        return ((agent, instance) for agent in self.made for instance in agent.execution.operators.instances.values())


def make_agent(name: str, operators: Sequence[Any], members: Sequence[str]) -> Any:
    alive = SimpleNamespace(status=MemberStatus.ALIVE)
    return SimpleNamespace(
        name=name,
        config=SimpleNamespace(links=WINDOW, engine=SimpleNamespace(operators_max=4)),
        execution=SimpleNamespace(
            operators=SimpleNamespace(
                instances={instance.id: instance for instance in operators},
                room=SimpleNamespace(budget=SimpleNamespace(used_bytes=0), free_slots=lambda now: 4 - len(operators)),
            ),
            migrations=SimpleNamespace(departing=0, arriving=0),
        ),
        host=SimpleNamespace(now=lambda: 0.0),
        network=SimpleNamespace(
            gossip=SimpleNamespace(
                members=dict.fromkeys(members, alive), localiser=SimpleNamespace(coordinate=ORIGIN), coordinate_of=lambda other: ORIGIN
            )
        ),
        queries=SimpleNamespace(owned=SimpleNamespace(find=lambda query: None, ownership=SimpleNamespace(owned={}), records={"": None})),
    )


def operator(name: str, state: State = State.RUNNING, sender: Any = None, receiver: Any = None, queue: int = 0, epoch: int = 0) -> Any:
    outputs = {} if sender is None else {LINK: SimpleNamespace(sender=sender)}
    inputs = {} if receiver is None else {LINK: SimpleNamespace(receiver=receiver, queue=[0] * queue, from_former=0)}
    return SimpleNamespace(id=name, state=state, outputs=outputs, inputs=inputs, users={"q1": "n0"}, epoch=epoch)


def sender_of(offered: int, acknowledged: int, link: str = LINK) -> LinkSender:
    sender = LinkSender(link, WINDOW)
    for _ in range(offered):
        sender.offer(0.0, 0, None)
    assert sender.acknowledge(acknowledged, 2)
    return sender


# The checkers take anything that looks like a run.
def look(checker: Any, run: Any) -> str:
    return str(checker(run).look())


def test_an_operator_that_runs_on_two_hosts_is_found() -> None:
    assert "b runs on n0 and on n1" in look(Copies, Agents(("n0", operator("b")), ("n1", operator("b", State.PAUSED))))
    assert not look(Copies, Agents(("n0", operator("b")), ("n1", operator("b", State.PREPARED)), ("n1", operator("c"))))


def test_a_copy_that_was_taken_for_lost_may_run_until_the_faults_are_over() -> None:
    run: Any = Agents(("n0", operator("b", epoch=3)), ("n1", operator("b", epoch=GENERATION)))
    assert not look(Copies, run)
    assert "b runs on n0 and on n1" in Copies(run).converged()


def owned_by(run: Any, number: int, epoch: int, version: int, phase: Phase = Phase.KEPT) -> None:
    machine = SimpleNamespace(phase=phase, counted=epoch, version=version)
    run.made[number].queries.owned.ownership = SimpleNamespace(owned={"q1": SimpleNamespace(machine=machine)})


def test_two_owners_of_one_epoch_are_found() -> None:
    run: Any = Agents()
    owned_by(run, 0, 1, 4)
    owned_by(run, 1, 1, 3, Phase.CUT_OFF)
    owners = Owners(run)
    assert not owners.look()
    owned_by(run, 1, 1, 4)
    assert owners.look() == "q1 is owned by n0 and by n1 under epoch 1"


def test_a_former_owner_that_goes_on_is_found() -> None:
    """A version sent before the new owner began may still count; one sent afterwards may not."""
    run: Any = Agents()
    owned_by(run, 0, 0, 6)
    owners = Owners(run)
    assert not owners.look()
    owned_by(run, 0, 0, 7, Phase.WRITING)
    owned_by(run, 1, 1, 8)
    assert not owners.look()
    owned_by(run, 0, 0, 7)
    assert not owners.look()
    owned_by(run, 0, 0, 8, Phase.WRITING)
    assert not owners.look()
    owned_by(run, 0, 0, 8)
    assert owners.look() == "n0 still owns q1 under epoch 0, and n1 under 1"


def test_an_epoch_that_goes_back_is_found() -> None:
    run: Any = Agents()
    healing = SimpleNamespace(over=set())
    record = SimpleNamespace(specs={"b"}, epochs={"b": 4}, nodes={"b": "n0"}, health=SimpleNamespace(healing=healing))
    for agent in run.made:
        agent.queries.owned.records = {"q1": record} if agent.name == "n0" else {}
    epochs = Epochs(run)
    assert not epochs.look()
    record.nodes["b"] = "n1"
    assert epochs.look() == "b is on n1 in epoch 4, and was on n0"
    record.nodes["b"], record.epochs["b"] = "n0", 3
    assert epochs.look() == "b is in epoch 3, and was in 4 before"
    healing.over.add("b")
    assert not epochs.look(), "no operator of the query runs any more"


def test_an_owner_may_have_heard_of_fewer_moves_than_the_one_before_but_of_no_fewer_recoveries() -> None:
    run: Any = Agents()
    health = SimpleNamespace(healing=SimpleNamespace(over=set()))
    home, other = run.made
    other.queries.owned.records = {}
    epochs = Epochs(run)
    for epoch, problem in ((GENERATION + 2, ""), (GENERATION + 1, ""), (2, f"b is in epoch 2, and was in {GENERATION + 1} before")):
        home.queries.owned.records = {"q1": SimpleNamespace(specs={"b"}, epochs={"b": epoch}, nodes={"b": "n0"}, health=health)}
        assert epochs.look() == problem


@pytest.mark.parametrize(
    ("offered", "acknowledged", "processed", "received", "problem"),
    [
        (3, 1, 2, 3, ""),
        (3, 2, 2, 2, ""),
        (3, 3, 2, 3, "batch 3 of a>b is acknowledged, but only 2 are processed"),
        (3, 1, 1, 4, "batch 4 of a>b has been received, but only 3 were offered"),
        (3, 0, 3, 2, "b on n1 has processed more of a>b than it has received"),
    ],
)
def test_numbers_of_a_link_that_cannot_be_are_found(offered: int, acknowledged: int, processed: int, received: int, problem: str) -> None:
    receiver = LinkReceiver(LINK, WINDOW, processed)
    receiver.received = received
    run = Agents(("n0", operator("a", sender=sender_of(offered, acknowledged))), ("n1", operator("b", receiver=receiver)))

    assert look(Links, run) == problem


def test_numbers_that_fall_when_an_operator_moves_are_found() -> None:
    run: Any = Agents(("n0", operator("b", receiver=LinkReceiver(LINK, WINDOW, 5))))
    links = Links(run)
    assert not links.look()
    run.made = Agents(("n1", operator("b", receiver=LinkReceiver(LINK, WINDOW, 4)))).made
    assert links.look() == "a>b is at batch 4, and was at 5 before"

    run = Agents(("n0", operator("a", sender=sender_of(5, 4))))
    links = Links(run)
    assert not links.look()
    run.made = Agents(("n1", operator("a", sender=sender_of(4, 4)))).made
    assert links.look() == "a gives batch 4 of a>b, and gave 5 before"


@pytest.mark.parametrize("begins", [True, False])
def test_a_link_to_a_query_that_begins_may_be_made_again(begins: bool) -> None:
    """The operator that feeds it belongs to another query, which runs."""

    def agents(offered: int) -> Any:
        run: Any = Agents(("n0", operator("a", sender=sender_of(offered, 0, f"a>{QUERY}.1:0"))))
        run.made[1].queries.owned.records = {} if begins else {QUERY: None}
        return run

    run = agents(2)
    links = Links(run)
    assert not links.look()
    run.made = agents(1).made
    assert links.look() == ("" if begins else f"a gives batch 1 of a>{QUERY}.1:0, and gave 2 before")


def test_links_queues_disks_and_tables_beyond_their_bounds_are_found() -> None:
    assert not look(Bounds, Agents(("n0", operator("a", sender=sender_of(4, 0)))))
    assert "holds 5 batches in memory, its window is 2" in look(Bounds, Agents(("n0", operator("a", sender=sender_of(5, 0)))))
    waiting = operator("b", receiver=LinkReceiver(LINK, WINDOW), queue=5)
    assert "5 batches of a>b wait at b" in look(Bounds, Agents(("n1", waiting)))
    full = Agents()
    full.world.world.machines[1].disk.used_bytes = 1
    assert look(Bounds, full) == "n1 has 1 bytes on disk, links.spill_bytes is 0"
    assert "n0 knows 3 members of 2" in look(Bounds, Agents(members=("n0", "n1", "ghost")))


def test_a_coordinate_that_is_not_finite_is_found() -> None:
    run = Agents()
    assert not look(Coordinates, run)
    run.made[1].network.gossip.coordinate_of = lambda name: Coordinate((float("nan"), 0.0, 0.0), 0.0, 1.0)
    assert "n1 has a wrong coordinate of n0" in look(Coordinates, run)


def test_agents_that_disagree_about_the_members_are_found() -> None:
    def converged(**members: Any) -> str:
        run: Any = Agents(**members)
        return Members(run).converged()

    assert not converged()
    assert converged(members=("n0",)) == "n0 sees n0 alive, expected n0, n1"


def test_what_ended_queries_have_left_behind_is_found() -> None:
    def left(run: Any) -> str:
        return Leftovers(run).converged()

    assert not left(Agents())
    assert "a is still on n0 (running) for q1" in left(Agents(("n0", operator("a"))))
    for change, problem in (
        (lambda agent: setattr(agent.execution.migrations, "arriving", 1), "n1 has 0 operators leaving and 1 arriving"),
        (lambda agent: setattr(agent.execution.operators.room.budget, "used_bytes", 7), "the states on n1 take 7 bytes"),
        (lambda agent: setattr(agent.execution.operators.room, "free_slots", lambda now: 3), "n1 has 3 free slots of 4"),
    ):
        run = Agents()
        change(run.made[1])
        assert left(run) == problem
    run = Agents()
    run.world.world.machines[0].disk.names = lambda: ["spill-1"]
    assert left(run) == "n0 has spill-1 on disk"


def with_query(
    tmp_path: Path, rows: str, state: QueryState, shape: str = "filters", reason: str = "", counted: int = 0, exact: bool = True
) -> Any:
    """Returns a run with the query `k0`, whose right rows are 1, 2 and 2, and whose sink has written the given rows."""
    (tmp_path / "k0.csv").write_text(f"c0\n{rows}")
    run: Any = Agents()
    query = Query("SELECT c0 FROM p", "", ("BIGINT",), (1e-9,), shape)
    run.reference = SimpleNamespace(queries=(Asked("k0", query, 0, 1, "csv"),), rows={"k0": [(1,), (2,), (2,)]})
    run.ids = {"k0": "q1"}
    run.world.data_dir_of = lambda number: tmp_path
    account = SimpleNamespace(history=[], is_exact=exact, rows=counted, surplus_rows=0, sentences=lambda text_of: [])
    record = SimpleNamespace(
        state=state, reason=reason, text_of=str, lost=frozenset(), health=SimpleNamespace(healing=SimpleNamespace(account=account))
    )
    run.made[0].queries.owned.find = {"q1": record}.get
    return run


@pytest.mark.parametrize(
    ("rows", "problem"),
    [("1\n2\n2\n", ""), ("2\n1\n2\n", ""), ("1\n2\n", "1 missing"), ("1\n1\n2\n2\n", "1 too many"), ("1\n2\n3\n", "1 too many, 1 missing")],
)
def test_rows_that_one_node_does_not_give_are_found(tmp_path: Path, rows: str, problem: str) -> None:
    found = Rows(with_query(tmp_path, rows, QueryState.FINISHED)).end()

    assert problem in found
    assert bool(found) == bool(problem)


def run_of_registers(*registers: Any) -> tuple[Run, list[Any]]:
    """Returns a run of the query k0 and its agents, which know only these registers."""
    nothing = SimpleNamespace(find=lambda name: None)
    alive: list[Any] = [
        (n, SimpleNamespace(queries=SimpleNamespace(owned=SimpleNamespace(records=it.running, register=it), resuming=nothing)))
        for n, it in enumerate(registers)
    ]

    class Lone(Run):
        def agents(self) -> Any:
            return iter(alive)

    run = Lone(SimpleNamespace(seed=0), SimpleNamespace(), SimpleNamespace(now=1.0))  # type: ignore[arg-type]
    run.ids["k0"] = QUERY
    return run, alive


def test_the_record_is_that_of_the_latest_owner() -> None:
    """A former owner that was cut off does not know yet that its successor has ended the query."""
    former, latest = (SimpleNamespace(id=QUERY, name="k0", former="") for _ in range(2))
    heard = owners.Owners()
    heard.heard(QUERY, owners.Owner("n1", 1, 1))
    before = SimpleNamespace(running={QUERY: former}, ended={}, owners=owners.Owners())
    after = SimpleNamespace(running={}, ended={QUERY: latest}, owners=heard)
    run, _ = run_of_registers(before, after)

    assert run.record_of("k0") is latest


def test_a_query_has_ended_whose_owner_waits_for_its_keepers_and_crashes() -> None:
    """Such an owner reports the query as running again, but its sink stays finished."""
    record = SimpleNamespace(id=QUERY, name="k0", former="", state=QueryState.FINISHED)
    run, alive = run_of_registers(SimpleNamespace(running={QUERY: record}, ended={}, owners=owners.Owners()))
    run.watch_ends()
    record.state = QueryState.RUNNING
    assert run.record_of("k0").state is QueryState.RUNNING  # type: ignore[union-attr]
    alive.clear()
    assert run.record_of("k0").state is QueryState.FINISHED  # type: ignore[union-attr]


@pytest.mark.parametrize("finished", [False, True])
def test_a_query_has_not_ended_that_its_home_is_about_to_run_anew(finished: bool) -> None:
    """Its home has restarted before it had written to disk that the query had finished."""
    record = SimpleNamespace(id=QUERY, name="k0", former="", state=QueryState.FINISHED)
    run, alive = run_of_registers(SimpleNamespace(running={QUERY: record}, ended={}, owners=owners.Owners()))
    run.watch_ends()
    register = SimpleNamespace(running={}, ended={}, owners=owners.Owners())
    alive[0] = (
        0,
        SimpleNamespace(
            queries=SimpleNamespace(
                owned=SimpleNamespace(records={}, register=register),
                resuming=SimpleNamespace(find=lambda name: SimpleNamespace(finished=finished)),
            )
        ),
    )

    assert (run.record_of("k0") is not None) is finished


def test_a_query_that_does_not_end_is_found(tmp_path: Path) -> None:
    assert not Rows(with_query(tmp_path, "1\n", QueryState.FINISHED)).converged()
    assert Rows(with_query(tmp_path, "1\n", QueryState.DEGRADED, reason="p is lost")).converged() == "k0 is degraded: p is lost"


@pytest.mark.parametrize(
    ("rows", "state", "shape", "reason", "counted", "problem"),
    [
        ("1\n", QueryState.DEGRADED, "filters", "gone", 2, "k0 is degraded (gone), and n1 was killed"),
        ("1\n", QueryState.RUNNING, "filters", "", 2, "k0 is running (), and n1 was killed"),
        ("1\n", QueryState.FINISHED, "filters", "", 0, "k0 has ended without a reason after n1 was killed"),
        ("1\n", QueryState.FINISHED, "filters", "2 rows lost", 2, ""),
        ("1\n", QueryState.FINISHED, "filters", "1 row lost", 1, "k0 lacks 2 rows, and its home counts 1, after n1 was killed"),
        ("1\n2\n2\n", QueryState.FINISHED, "filters", "", 0, ""),
        ("1\n3\n", QueryState.FINISHED, "filters", "lost", 1, "k0 has rows that one node does not give"),
        ("1\n1\n", QueryState.FINISHED, "filters", "lost", 1, "k0 has rows that one node does not give"),
        ("1\n3\n", QueryState.FINISHED, "windows", "lost", 1, ""),
    ],
)
def test_rows_lost_without_a_word_are_found(
    tmp_path: Path, rows: str, state: QueryState, shape: str, reason: str, counted: int, problem: str
) -> None:
    run = with_query(tmp_path, rows, state, shape, reason, counted)
    run.harmed["k0"] = "n1 was killed"
    checker = Crashes(run)
    found = checker.converged() or checker.end()

    assert problem in found
    assert bool(found) == bool(problem)
    assert not Rows(run).converged()
    assert not Rows(run).end()


@pytest.mark.parametrize(
    ("go_on", "found", "problem"),
    [
        (Continuation(state_until_us=25, whole_us=30), [(10, 1), (30, 3)], ""),
        (Continuation(state_until_us=25, whole_us=30), [(10, 1), (20, 2)], "lacks (30, 3)"),
        (Continuation(state_until_us=25, whole_us=30), [(10, 1), (20, 1), (30, 3)], "has rows"),
        (Continuation(), [(10, 1), (20, 2), (30, 3)], ""),
        (Continuation(), [(10, 1), (30, 3)], "its home counts none"),
        (Continuation(is_exact=False), [(10, 1)], ""),
        (Continuation(surplus_rows=1), [(10, 1), (20, 1), (20, 2), (30, 3)], ""),
        (Continuation(surplus_rows=1), [(10, 1), (20, 2), (30, 3)], "has only right rows, and its home counts 1 of 0"),
        (Continuation(surplus_rows=1), [(10, 1), (20, 1), (20, 2), (20, 3), (30, 3)], "and its home counts 1 of 2"),
    ],
)
def test_answers_that_are_said_to_be_whole_must_be_there(go_on: Continuation, found: list[tuple[int, int]], problem: str) -> None:
    query = Query("", "", ("TIMESTAMP", "BIGINT"), (1e-9, 1e-9), "windows")
    account = Account()
    account.begun(Recovered({"w": "n0"}, 1, (), {"w": go_on}, 1, 0.5))
    said = unsaid(found, [(10, 1), (20, 2), (30, 3)], query, account)
    assert problem in said
    assert bool(said) == bool(problem)
