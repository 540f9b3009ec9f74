"""The WAN between namespaces in virtual time: when packets arrive, which do not, and in what order."""

import socket

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon_testbed.netns.devices import ip_address
from sbon_testbed.netns.schedule import PATH_PACKETS_MAX, Schedule
from sbon_testbed.simulator.network import NetworkConfig

MS = 1_000_000
TCP, UDP = 6, 17


def packet(target, size=100, protocol=UDP, mark=0):
    """Returns an IPv4 packet with the fields that the router reads, and a mark in its last bytes."""
    head = bytes([0x45, *[0] * 8, protocol, *[0] * 6]) + socket.inet_aton(ip_address(target))
    return (head + bytes(size))[: size - 4] + mark.to_bytes(4, "big")


def make_schedule(sites=3, delay_ms=10.0, plain=0, seed=1, **network):
    schedule = Schedule(sites, plain, NetworkConfig(**{"jitter_ms": 0.0, **network}), np.random.default_rng(seed))
    schedule.set_paths([[delay_ms] * sites] * sites, [0] * sites, [])
    return schedule


def arrivals(schedule, until_ns=10**18):
    """Returns all packets that arrive, as (instant, target, mark)."""
    return [(due_ns, target, int.from_bytes(data[-4:], "big")) for due_ns, target, data in schedule.due(until_ns, 10**9)]


def test_packet_arrives_at_its_target_after_half_the_round_trip():
    schedule = make_schedule(delay_ms=40.0)
    schedule.accept(0, packet(2, mark=7), now_ns=5 * MS)

    assert schedule.next_due_ns == 45 * MS
    assert arrivals(schedule, until_ns=45 * MS - 1) == []
    assert arrivals(schedule, until_ns=45 * MS) == [(45 * MS, 2, 7)]
    assert schedule.next_due_ns is None


def test_each_direction_has_its_own_delay():
    schedule = make_schedule(sites=2)
    schedule.set_paths([[0.0, 3.0], [8.0, 0.0]], [0, 0], [])
    schedule.accept(0, packet(1), now_ns=0)
    schedule.accept(1, packet(0), now_ns=0)

    assert [(due_ns, target) for due_ns, target, _ in arrivals(schedule)] == [(3 * MS, 1), (8 * MS, 0)]


def test_packets_to_nobody_go_nowhere():
    schedule = make_schedule(sites=2)
    for nobody in (packet(9), packet(0), b"", b"\x60" + bytes(39)):
        schedule.accept(0, nobody, now_ns=0)

    assert arrivals(schedule) == []
    assert schedule.counters["stray"] == 4


@given(
    loss=st.sampled_from([0.0, 0.1, 1.0]),
    duplicate=st.sampled_from([0.0, 0.1]),
    reorder=st.sampled_from([0.0, 0.3]),
    rate=st.sampled_from([0.0, 1e5]),
    sent=st.lists(st.tuples(st.sampled_from([TCP, UDP]), st.integers(0, 5 * MS)), max_size=60),
)
def test_every_packet_is_accounted_for_and_no_stream_is_turned_around(loss, duplicate, reorder, rate, sent):
    schedule = make_schedule(
        jitter_ms=2.0,
        loss=loss if loss < 1 else 1.0 - duplicate - reorder,
        duplicate=duplicate,
        reorder=reorder,
        bandwidth_bytes_per_s=rate,
        queue_bytes=2000,
    )
    now_ns, left_at = 0, {}
    for mark, (protocol, pause_ns) in enumerate(sent):
        now_ns += pause_ns
        left_at[mark] = (now_ns, protocol)
        schedule.accept(0, packet(1, protocol=protocol, mark=mark), now_ns)
    came = arrivals(schedule)
    counters = schedule.counters

    assert counters["sent"] == len(sent)
    assert counters["delivered"] == len(came) == counters["sent"] + counters["doubled"] - counters["lost"] - counters["tail_dropped"]
    assert schedule.under_way == 0
    assert all(due_ns >= left_at[mark][0] + 10 * MS for due_ns, _, mark in came)
    assert [due_ns for due_ns, _, _ in came] == sorted(due_ns for due_ns, _, _ in came)
    stream = [mark for _, _, mark in came if left_at[mark][1] == TCP]
    assert stream == sorted(set(stream))


@pytest.mark.parametrize(("what", "counter"), [("loss", "lost"), ("duplicate", "doubled")])
def test_shares_are_what_was_asked(what, counter):
    schedule = make_schedule(**{what: 0.05})
    for number in range(20_000):
        schedule.accept(0, packet(1), now_ns=number * MS)
        arrivals(schedule, until_ns=number * MS)

    assert schedule.counters[counter] / 20_000 == pytest.approx(0.05, abs=0.006)  # four standard deviations


def test_jitter_has_the_asked_mean():
    schedule = make_schedule(jitter_ms=4.0)
    for _ in range(5000):
        schedule.accept(0, packet(1), now_ns=0)

    assert np.mean([due_ns for due_ns, _, _ in arrivals(schedule)]) / MS - 10 == pytest.approx(4.0, rel=0.06)


def test_limited_path_sends_one_after_another_and_drops_the_tail():
    """At 1 MB/s, one packet of 1,000 bytes leaves each millisecond; 4 wait beside the one that is on its way out."""
    schedule = make_schedule(bandwidth_bytes_per_s=1e6, queue_bytes=4000)
    for mark in range(10):
        schedule.accept(0, packet(1, size=1000, mark=mark), now_ns=0)
    schedule.accept(0, packet(2, size=1000, mark=99), now_ns=0)

    assert [(due_ns // MS, mark) for due_ns, target, mark in arrivals(schedule) if target == 1] == [(11 + mark, mark) for mark in range(5)]
    assert schedule.counters["tail_dropped"] == 5
    schedule.accept(0, packet(1, size=1000), now_ns=100 * MS)
    assert [due_ns // MS for due_ns, _, _ in arrivals(schedule)] == [111]


def test_partition_stops_what_is_under_way_and_healing_lets_pass_again():
    schedule = make_schedule()
    schedule.accept(0, packet(2, mark=1), now_ns=0)
    schedule.set_paths([[10.0] * 3] * 3, [0, 0, 1], [])
    schedule.accept(0, packet(2, mark=2), now_ns=0)
    schedule.accept(0, packet(1, mark=3), now_ns=0)

    assert [mark for _, _, mark in arrivals(schedule, until_ns=20 * MS)] == [3]
    assert schedule.counters["blocked"] == 2
    schedule.set_paths([[10.0] * 3] * 3, [0, 0, 0], [])
    schedule.accept(0, packet(2, mark=4), now_ns=20 * MS)
    assert [mark for _, _, mark in arrivals(schedule)] == [4]


def test_nothing_passes_to_or_from_a_machine_that_is_off():
    schedule = make_schedule()
    schedule.set_paths([[10.0] * 3] * 3, [0, 0, 0], [1])
    for source, target in ((0, 1), (1, 0), (0, 2)):
        schedule.accept(source, packet(target), now_ns=0)

    assert [target for _, target, _ in arrivals(schedule)] == [2]


def test_packets_under_way_are_bounded():
    schedule = make_schedule()
    for _ in range(PATH_PACKETS_MAX + 10):
        schedule.accept(0, packet(1), now_ns=0)

    assert schedule.counters["tail_dropped"] == 10
    assert len(arrivals(schedule)) == PATH_PACKETS_MAX


def test_plain_sites_are_spared_and_not_counted():
    schedule = make_schedule(sites=4, plain=2, loss=1.0)
    for source, target in ((0, 1), (2, 3), (3, 2)):
        schedule.accept(source, packet(target), now_ns=0)

    assert [(due_ns, target) for due_ns, target, _ in arrivals(schedule)] == [(10 * MS, 3), (10 * MS, 2)]
    assert schedule.counters["sent"] == schedule.counters["lost"] == 1


def test_same_seed_same_luck():
    def run(seed):
        schedule = make_schedule(seed=seed, loss=0.2, jitter_ms=1.0)
        for mark in range(200):
            schedule.accept(0, packet(1, mark=mark), now_ns=mark * MS)
        return arrivals(schedule)

    assert run(3) == run(3) != run(4)


def test_addresses_are_private_and_differ():
    addresses = [ip_address(number) for number in range(1000)]

    assert len(set(addresses)) == 1000
    assert addresses[0] == "10.77.0.1"
    assert not any(address.endswith(".0.0") or address == "10.77.255.255" for address in addresses)
