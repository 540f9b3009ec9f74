"""Seeds of the simulator that once failed, except those about owners (`test_owners.py`)."""

import pytest

from sbon_testbed.simulator.simulation import simulate
from tests.examples import seeds

AGAIN = "an operator had finished, and its source was made again for another consumer: what it gave once more was never acknowledged"
UNHEARD = "a multicast was lost whose feeder had given everything, and so never learnt it: nobody fed what was made again behind it"
TOO_MUCH = "an operator that was to move gave the rest of a batch without credit"
AHEAD = "a join went on without an input that was away for long, and nobody said so once that was made again"
RETURN = "a host to which an operator was to return, and did not, got its acknowledgements"
OVER = "what was made again was to feed an operator that was over"
FORMER = "acknowledgements went to the former host of a sender, which had repeated a batch; and a version was taken for nobody's"
NOBODY = "an owner had crashed with all who had the record, and the restarted home believed its former holder that the owner still was"
NAN = "a join of few rows left out pairs whose key is NaN, if one side happened to be sorted"
STALE = "a candidate that only the newest version of a record names was refused for ever by the holder of an older one"
LATE = "a late report of an operator that had left its host and come back was taken for news"
FORGOTTEN = "who moved an operator had crashed before the word to run, and said after its restart that the move was abandoned"
BETWEEN = "a window, made again together with a union before it while a source was away, did not learn what it lacked of that source"
GIVEN_UP = "an agent that had given a query up did not say so to hosts that took it for the owner, so the query could not begin again"
BEFORE = "a source that read its file again did not know how far its former copy had come when the window behind it was lost"

WRONG = [(5162, FORGOTTEN), (7077, FORMER), (8051, AHEAD)]
LONG = [
    *((1655, AGAIN), (6226, LATE), (6355, STALE), (6411, NAN), (6469, NOBODY), (7012, OVER), (7637, FORMER)),
    *((3038, UNHEARD), (585, BEFORE)),
    *((181, RETURN), (3031, BETWEEN), (494, GIVEN_UP), (337, TOO_MUCH), (1597, TOO_MUCH)),
]


@pytest.mark.parametrize(("seed", "why"), seeds(WRONG, LONG))
def test_seeds_that_were_wrong_are_right(seed: int, why: str) -> None:
    assert simulate(seed).problem == "", why


def test_a_neighbour_hears_where_an_operator_has_moved_from_its_new_host_if_the_former_one_crashes() -> None:
    assert simulate(3097, ("kills", "partitions", "moves")).problem == ""


def test_a_sink_that_leaves_out_the_rows_of_its_file_is_sent_all_rows_of_a_join() -> None:
    outcome = simulate(626)
    assert (outcome.problem, outcome.inexact) == ("", ())
