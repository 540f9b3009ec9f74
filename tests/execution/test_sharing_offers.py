"""Sharing has no states: whether a host offers an operator, and whether a query may use it, depends on facts of the moment."""

from contextlib import nullcontext
from itertools import permutations, product
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from sbon.errors import PlacementError
from sbon.execution.life import State
from sbon.execution.operators import Operators
from sbon.execution.waiting import Waiting
from sbon.placement.reservations import HostingConfig
from sbon.query.params.source import SinkParams
from sbon.query.params.streams import UnionParams
from sbon.query.plan import LinkSpec
from sbon.supervision.sharing import STALLED_SAMPLES, Sharing
from sbon.wire.deployment import End, Use, User


def test_an_operator_that_has_ended_since_it_was_offered_is_not_joined():
    """Its rows have passed: the query would end at once, without rows."""
    running = SimpleNamespace(id="p.1", state=State.RUNNING, outputs={}, users={"p": "b"}, waiting=Waiting({}), movable=True)
    operators = SimpleNamespace(instances={"p.1": running}, me="a", room=SimpleNamespace(is_leaving=False))
    sharing = Sharing(operators, HostingConfig(), lambda: 0.0)
    use = Use(operator="p.1", user=User("q", "b"), outputs=(End(LinkSpec("p.1>q.1:0", "p.1", "q.1", 0, 1.0, 8.0), "b", ()),))
    sharing.check(use)

    running.users = {"r": "c"}
    with pytest.raises(PlacementError, match="the query that it was made for has ended"):
        sharing.check(use)
    operators.room.is_leaving = True
    with pytest.raises(PlacementError, match=r"operator p\.1 is not shared: a is leaving"):
        sharing.check(use)
    running.state = State.FINISHED
    with pytest.raises(PlacementError, match=r"operator p\.1 is not shared: it has ended"):
        sharing.check(use)


CONFIG = HostingConfig(share_load_max=1.0, share_bytes_per_s_max=100.0, share_outputs_max=3)
OTHER = "r.1>s.1:0"
"""A link of another operator on the host."""


class Facts(NamedTuple):
    """Everything that the decision depends on."""

    leaves: bool
    """The host leaves."""
    home_uses_it: bool
    """The query that the operator was made for uses it."""
    waits: bool
    """It has had no credit for two samples."""
    outputs: int
    movable: bool
    load: float
    other_bytes_per_s: float
    """Rate of the other operator's link to another host; each output of the operator has 40 bytes/s, and leaves the host."""

    @property
    def reason(self) -> str:
        """Says in one word why the operator must not be shared; the rules are those of docs/protocols.md, in their order."""
        bytes_per_s = self.other_bytes_per_s + 40.0 * self.outputs + (40.0 if self.outputs else 0.0)
        rules = [
            (self.leaves, "is leaving"),
            (not self.home_uses_it, "made for has ended"),
            (self.waits, "waits for the consumers"),
            (self.outputs >= 3, "share_outputs_max"),
            (self.load > 1.0 and self.movable, "share_load_max"),
            (bytes_per_s > 100.0 and self.movable, "share_bytes_per_s_max"),
        ]
        return next((reason for holds, reason in rules if holds), "")


FACTS = [
    Facts(*each)
    for each in product(
        (False, True), (False, True), (False, True), (0, 1, 2, 3, 4), (False, True), (0.0, 1.0, 1.01), (0.0, 20.0, 21.0, 200.0)
    )
]


def make_sharing(facts: Facts, *operators: Any) -> Sharing:
    """Returns the decision of host a, which has these operators and another one."""
    rate = SimpleNamespace(per_s=facts.other_bytes_per_s)
    other = make_operator("r.1", facts, outputs={OTHER: SimpleNamespace(byte_rate=rate, node="b"), "local": output(10_000.0, "a")})
    instances = {one.id: one for one in (*operators, other)}
    here: Any = SimpleNamespace(instances=instances, me="a", room=SimpleNamespace(is_leaving=facts.leaves))
    here.shareable = lambda: Operators.shareable(here)
    return Sharing(here, CONFIG, lambda: facts.load)


def output(bytes_per_s: float, node: str) -> Any:
    return SimpleNamespace(byte_rate=SimpleNamespace(per_s=bytes_per_s), node=node)


def make_operator(name: str, facts: Facts, **given: Any) -> Any:
    waiting = SimpleNamespace(blocked_samples=STALLED_SAMPLES if facts.waits else STALLED_SAMPLES - 1, starved=False)
    fields = {
        "spec": SimpleNamespace(signature=f"signature of {name}", params=UnionParams()),
        "state": State.RUNNING,
        "users": {name.partition(".")[0]: "b"} if facts.home_uses_it else {"s": "c"},
        "outputs": {f"{name}>{number}": output(40.0, "b") for number in range(facts.outputs)},
        "waiting": waiting,
        "movable": facts.movable,
    }
    return SimpleNamespace(id=name, **(fields | given))


def use_of(operator: str, query: str = "q", *links: str) -> Use:
    return Use(operator, User(query, "b"), tuple(End(LinkSpec(link, operator, "q.1", 0, 1.0, 8.0), "b", ()) for link in links or ("new",)))


def test_whether_an_operator_is_shared_depends_only_on_facts_of_the_moment():
    """All combinations are tried. An operator is offered exactly if a query that asks for it next is not refused."""
    reasons = set()
    for facts in FACTS:
        operator = make_operator("p.1", facts)
        sharing = make_sharing(facts, operator)
        if facts.reason:
            with pytest.raises(PlacementError, match=facts.reason):
                sharing.check(use_of("p.1"))
        else:
            sharing.check(use_of("p.1"))
        assert sharing.offered(["signature of p.1", "unknown"]) == ({} if facts.reason else {"signature of p.1": "p.1"}), facts
        reasons.add(facts.reason)
    assert len(reasons) == 7


@pytest.mark.parametrize("state", State)
def test_in_which_states_an_operator_is_offered_and_in_which_it_takes_a_query(state: State):
    """A query that comes after an offer is refused only if the operator has finished; `Operators.use` refuses one that has failed."""
    for facts in (FACTS[0], next(facts for facts in FACTS if not facts.reason), next(facts for facts in FACTS if facts.leaves)):
        operator = make_operator("p.1", facts, state=state)
        sharing = make_sharing(facts, operator)
        assert bool(sharing.offered(["signature of p.1"])) is (state is State.RUNNING and not facts.reason)
        refusal = "it has ended" if state is State.FINISHED else facts.reason
        with pytest.raises(PlacementError, match=refusal) if refusal else nullcontext():
            sharing.check(use_of("p.1"))


@pytest.mark.parametrize("facts", [facts for facts in FACTS if facts.load == 1.01 and facts.other_bytes_per_s == 200.0])
def test_a_repeated_request_the_operators_own_query_and_an_unknown_operator_are_not_refused_here(facts: Facts):
    operator = make_operator("p.1", facts, state=State.FINISHED)
    sharing = make_sharing(facts, operator)
    sharing.check(use_of("p.1", "p"))
    sharing.check(use_of("p.9"))
    for number in range(facts.outputs):
        sharing.check(use_of("p.1", "q", f"p.1>{number}"))
        with pytest.raises(PlacementError):
            sharing.check(use_of("p.1", "q", f"p.1>{number}", "new"))


def test_operators_without_input_and_sinks_are_not_offered():
    facts = next(facts for facts in FACTS if not facts.reason)
    starved = make_operator("p.1", facts)
    starved.waiting.starved = True
    sink = make_operator("p.2", facts, spec=SimpleNamespace(signature="signature of p.2", params=SinkParams("q", "tail", ())))
    assert make_sharing(facts, starved, sink).offered(["signature of p.1", "signature of p.2"]) == {}


@pytest.mark.parametrize("counts", list(product((0, 1, 3), repeat=3)))
def test_of_several_operators_that_may_be_shared_the_one_with_the_fewest_outputs_is_offered(counts: tuple[int, ...]):
    """The name decides between equals; an operator with 3 outputs has too many."""
    facts = next(facts for facts in FACTS if not facts.reason and not facts.movable)
    spec = SimpleNamespace(signature="same", params=UnionParams())
    same = [make_operator(f"p.{number}", facts._replace(outputs=count), spec=spec) for number, count in enumerate(counts)]
    best = sorted((count, f"p.{number}") for number, count in enumerate(counts) if count < 3)[:1]
    for order in permutations(same):
        assert list(make_sharing(facts, *order).offered(["same"]).items()) == [("same", name) for _, name in best]
