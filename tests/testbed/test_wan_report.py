"""Reports of the router to the testbed, and a run's report on its network."""

import socket

import pytest

from sbon.errors import SbonError
from sbon_testbed.netns.messages import Paths, Report, Setup, receive, send
from sbon_testbed.netns.router import Lateness
from sbon_testbed.report import network_lines
from sbon_testbed.simulator.network import NetworkConfig

COUNTERS = {
    "started": 2,
    "network_sent": 1200,
    "network_delivered": 1150,
    "network_lost": 30,
    "network_blocked": 15,
    "network_tail_dropped": 5,
    "network_unread": 0,
    "network_probes_late_us_p50": 90,
    "network_probes_late_us_p99": 210,
}


def test_percentiles_of_lateness_are_steps_within_which_packets_came():
    lateness = Lateness()
    assert lateness.percentile_us(0.5) == 0
    for late_us in range(100):
        lateness.add(late_us * 1000)
    lateness.add(10**12)

    assert lateness.percentile_us(0.5) == 60
    assert lateness.percentile_us(0.99) == 100
    assert lateness.percentile_us(1.0) > 200_000


@pytest.mark.parametrize(
    "message",
    [
        Setup(run="a1b2c3", sites=4, plain=2, seed=7, network=NetworkConfig(loss=0.01)),
        Paths(delay_ms=[[0.0, 1.5], [2.5, 0.0]], group=[0, 1], off=[1]),
        Report(counters={"sent": 3}, cpu_s=0.5),
    ],
)
def test_messages_arrive_as_they_were_sent(message):
    here, there = socket.socketpair()
    with here, there:
        send(here, message)
        here.close()
        assert receive(there) == message
        assert receive(there) is None


def test_message_that_is_too_long_is_refused():
    here, there = socket.socketpair()
    with here, there:
        here.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(SbonError, match="expected at most"):
            receive(there)


def test_run_says_what_became_of_its_packets_and_how_late_they_came():
    assert network_lines(COUNTERS) == [
        "network: 1,200 packets, 1,150 delivered, 30 lost by chance, 15 blocked, 5 dropped from full queues",
        "network: packets came 0.09 ms late (median), 0.21 ms (99th percentile)",
    ]


@pytest.mark.parametrize("changed", [{"network_probes_late_us_p99": 5100}, {"network_unread": 1}])
def test_overloaded_wan_is_not_to_be_trusted(changed):
    assert "do not trust the times" in network_lines(COUNTERS | changed)[-1]


def test_worlds_without_such_a_network_say_nothing():
    assert network_lines({"started": 2}) == []
