"""The owners of turns with which lost splitters and instances begin, by the answers of their living neighbours."""

import msgspec
import pytest

from sbon.query.params.matched import MatchParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.params.streams import MergeParams, SplitParams
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.supervision.crash_analysis import Crash, continuations
from sbon.supervision.turn_owners import deals_otherwise, known_turns
from sbon.types import LinkId, OperatorId
from sbon.wire.deployment import DealtTurns, Renewed
from tests.dealing.test_asking import BY_DEALER, MATCH, sink
from tests.query_worlds import plan_of

PLAN = plan_of(sink(MATCH, 3, BY_DEALER))
SPECS: dict[OperatorId, OperatorSpec] = {spec.id: spec for spec in PLAN.operators}
LINKS: list[LinkSpec] = list(PLAN.links)
[SPLITTER] = [one for one, spec in SPECS.items() if isinstance(spec.params, SplitParams)]
INSTANCES = [one for one, spec in SPECS.items() if isinstance(spec.params, MatchParams)]
[MERGER] = [one for one, spec in SPECS.items() if isinstance(spec.params, MergeParams)]
[TO_SINK] = [one for one, spec in SPECS.items() if isinstance(spec.params, SinkParams)]
DEALT = [link for link in LINKS if link.source == SPLITTER]
WHOLE, REST = DealtTurns(((0, 1), (1, 0)), is_whole=True), DealtTurns(((1, 0), (2, 1)), is_whole=False)


def answers(*dealt: DealtTurns | msgspec.UnsetType) -> dict[LinkId, Renewed]:
    """Returns answers of the first instances, or of the splitter about links to these."""
    return {link.id: Renewed(link, 0, 0, 0, dealt=one) for link, one in zip(DEALT, dealt, strict=False)}


@pytest.mark.parametrize("operator", [SPLITTER, INSTANCES[0], INSTANCES[1]])
def test_a_splitter_and_an_instance_begin_with_all_turns_that_their_neighbours_know(operator: OperatorId) -> None:
    assert known_turns(operator, SPECS, LINKS, answers(WHOLE)) == WHOLE
    assert known_turns(operator, SPECS, LINKS, answers(WHOLE, REST)) == DealtTurns(((0, 1), (1, 0), (2, 1)), is_whole=False)


def test_nothing_is_known_if_a_neighbour_does_not_tell_and_no_turns_if_there_is_no_neighbour() -> None:
    assert known_turns(SPLITTER, SPECS, LINKS, answers(WHOLE, msgspec.UNSET)) is msgspec.UNSET
    assert known_turns(SPLITTER, SPECS, LINKS, {}) == DealtTurns((), is_whole=False)
    assert known_turns(MERGER, SPECS, LINKS, answers(WHOLE)) is msgspec.UNSET


def test_a_splitter_may_deal_otherwise_than_before_if_it_begins_with_rows_whose_turns_nobody_knows() -> None:
    lost = [SPLITTER, INSTANCES[0]]
    assert not deals_otherwise(SPLITTER, WHOLE, SPECS, LINKS, [SPLITTER], [SPLITTER])
    assert not deals_otherwise(SPLITTER, REST, SPECS, LINKS, lost, [])
    assert not deals_otherwise(INSTANCES[0], REST, SPECS, LINKS, lost, lost)
    assert deals_otherwise(SPLITTER, REST, SPECS, LINKS, [SPLITTER], [SPLITTER])
    assert deals_otherwise(SPLITTER, WHOLE, SPECS, LINKS, lost, lost)
    assert deals_otherwise(SPLITTER, REST, SPECS, LINKS, [SPLITTER, *INSTANCES], [SPLITTER, *INSTANCES])
    every = [SPLITTER, *INSTANCES, MERGER, TO_SINK]
    assert not deals_otherwise(SPLITTER, REST, SPECS, LINKS, every, every)


def test_an_instance_lost_with_its_splitter_says_until_when_answers_lack_rows_of_turns_that_nobody_knows() -> None:
    """A turn of which only the lost instance had heard is decided anew, and its next owner does not have the rows that were lost."""
    [feeding] = [link for link in LINKS if link.target == SPLITTER]
    taken = {link.id: Renewed(link, 1, 10, 90) for link in DEALT if link.target != INSTANCES[0]}
    taken |= {link.id: Renewed(link, 1, 3, 80) for link in LINKS if link.source == INSTANCES[0]}
    crash = Crash(SPECS, LINKS, {SPLITTER, INSTANCES[0]}, taken, {feeding.id: Renewed(feeding, 4, 40, 100)}, {})
    found = continuations(crash)[INSTANCES[0]]
    delay_us = max(spec.params.watermark_delay_us for spec in SPECS.values() if isinstance(spec.params, SourceParams))
    assert (found.state_until_us, found.is_exact) == (100 + delay_us, False)
