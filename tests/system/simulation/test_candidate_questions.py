"""Answers of candidates: peers farther away than the timeout, and the speed of a host that has not run anything yet."""

import numpy as np
import pytest

from sbon.cost.resources import KERNEL_REFERENCE_NS
from sbon.wire.candidates import CandidateAnswer, CandidateAsk
from sbon_testbed.simulator.cpu import CpuConfig
from sbon_testbed.simulator.network import NetworkConfig
from sbon_testbed.topology import Topology
from tests.worlds import settled_world


def flat(rtt_ms, nodes=3):
    matrix = np.full((nodes, nodes), float(rtt_ms))
    np.fill_diagonal(matrix, 0.0)
    return matrix


def test_a_round_trip_that_nobody_waits_for_counts_as_long_as_the_wait_whatever_it_once_was():
    """A remembered RTT of 20 ms would make a node look near that is now 5 s away."""
    names = ("n0", "n1", "n2")
    world = settled_world(Topology("matrix", names, ({}, {}, {}), flat(20.0), np.zeros(3)), seed=3, network=NetworkConfig(jitter_ms=0.0))
    world.run(30.0)
    far = flat(20.0)
    far[0, 1] = far[1, 0] = 5000.0
    world.paths.follow(far[None], every_s=1.0)
    answers = []
    agent = world.agents[0]
    agent.placement.candidate_questions.answer(CandidateAsk(about=("n1", "n2"), signatures=(), query="", slots=0), answers.append)
    world.run(5.0)

    assert isinstance(answers[0], CandidateAnswer)
    assert 1000.0 <= answers[0].rtts_ms["n1"] <= 1100.0  # membership.ping_timeout_s
    assert 19.0 <= answers[0].rtts_ms["n2"] <= 22.0
    world.close()


def test_a_candidate_that_has_run_nothing_yet_tells_the_measured_speed_of_its_machine():
    """Its machine is half as fast as the reference; by the rule it would count as equally fast."""
    names = ("n0", "n1")
    cpu = CpuConfig(cores=1, batch_us=2 * KERNEL_REFERENCE_NS / 1e3, row_ns=0.0)
    world = settled_world(Topology("matrix", names, ({}, {}), flat(20.0, 2), np.zeros(2)), seed=3, cpu=cpu)
    told = []
    for asker, candidate in ((world.agents[0], "n1"), (world.agents[1], "n0")):
        asker.placement.candidate_questions.ask(candidate, (), (), 5.0, lambda node, report: told.append(report))
        world.run(5.0)
        assert told[-1] is not None
        speed = asker.execution.cost_store.nodes.of(candidate, world.now).speed
        assert (speed.source, speed.value) == ("measured", pytest.approx(0.5))
    world.close()
