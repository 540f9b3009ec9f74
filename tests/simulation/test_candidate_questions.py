"""Candidates that measure peers farther away than the timeout."""

import numpy as np

from sbon.wire.candidates import CandidateAnswer, CandidateAsk
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
