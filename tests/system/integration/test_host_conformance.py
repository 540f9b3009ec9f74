"""Contract of `sbon_agent.host.Host`: the same tests for the virtual world and for asyncio."""

from collections.abc import Iterator

import pytest

from sbon.errors import ConfigError
from tests.system.integration.host_worlds import AsyncioPair, Listener, Recorder, ShapedPair, SimulatedPair, TwoHosts, UvloopPair

WORLDS = {"simulated": SimulatedPair, "asyncio": AsyncioPair, "uvloop": UvloopPair, "shaped": ShapedPair}


@pytest.fixture(params=sorted(WORLDS))
def pair(request: pytest.FixtureRequest) -> Iterator[TwoHosts]:
    world = WORLDS[request.param]()
    yield world
    world.close()


def listeners(pair: TwoHosts) -> tuple[Listener, Listener]:
    return Listener(pair.hosts[0], pair.addresses[0]), Listener(pair.hosts[1], pair.addresses[1])


def connect(pair: TwoHosts, target: Listener) -> tuple[Recorder, Recorder]:
    """Opens a stream from host 0; returns both ends."""
    mine = Recorder()
    before = len(target.streams)
    pair.hosts[0].connect(target.address, mine)
    pair.run(lambda: mine.stream is not None and len(target.streams) > before and target.streams[-1].stream is not None)
    return mine, target.streams[-1]


def test_the_monotonic_clock_does_not_go_back_and_the_wall_clock_is_of_this_century(pair):
    host = pair.hosts[0]
    first = host.now()
    ran = []
    host.call_at(first + 0.01, lambda: ran.append(host.now()))
    pair.run(lambda: bool(ran))
    assert ran[0] >= first + 0.01
    assert 1_600_000_000 < host.wall() < 4_200_000_000


def test_timers_come_in_order_never_early_and_not_when_cancelled(pair):
    host, log = pair.hosts[0], []
    start = host.now()
    for delay in (0.03, 0.01, 0.02):
        host.call_at(start + delay, lambda delay=delay: log.append((delay, host.now() >= start + delay)))
    host.call_at(start + 0.015, lambda: log.append("cancelled")).cancel()
    pair.run(lambda: len(log) >= 3)
    assert log == [(0.01, True), (0.02, True), (0.03, True)]


def test_a_timer_of_the_past_comes_soon_but_not_inside_the_call_that_asked(pair):
    host, log = pair.hosts[0], []
    host.call_at(host.now() - 5, lambda: log.append("timer"))
    host.call_soon(lambda: log.append("soon"))
    assert log == []
    pair.run(lambda: len(log) == 2)


def test_cancelling_a_timer_that_has_come_does_nothing(pair):
    host, log = pair.hosts[0], []
    timer = host.call_at(host.now(), lambda: log.append(1))
    pair.run(lambda: log == [1])
    timer.cancel()
    host.call_soon(lambda: log.append(2))
    pair.run(lambda: len(log) == 2)
    assert log == [1, 2], "the host must continue"


def test_call_soon_keeps_the_order_of_the_calls(pair):
    log = []
    for number in range(5):
        pair.hosts[0].call_soon(lambda number=number: log.append(number))
    pair.run(lambda: len(log) == 5)
    assert log == [0, 1, 2, 3, 4]


def test_random_bytes_have_the_length_asked_for_and_differ(pair):
    first, second = pair.hosts[0].random_bytes(24), pair.hosts[0].random_bytes(24)
    assert len(first) == len(second) == 24
    assert first != second
    assert pair.hosts[0].random_bytes(24) != pair.hosts[1].random_bytes(24)


def test_listen_gives_the_port_it_chose_and_refuses_one_in_use(pair):
    listener = Listener(pair.hosts[0], pair.addresses[0])
    assert listener.address[1] != 0
    with pytest.raises(ConfigError):
        Listener(pair.neighbour(), listener.address)


def test_a_datagram_arrives_with_its_sender_and_instant_and_can_be_answered(pair):
    one, two = listeners(pair)
    before = pair.hosts[1].now()
    pair.hosts[0].send_datagram(b"hello", two.address)
    pair.run(lambda: bool(two.datagrams))
    data, sender, received_at = two.datagrams[0]
    assert (data, sender) == (b"hello", one.address)
    assert before - 0.001 <= received_at <= pair.hosts[1].now()
    pair.hosts[1].send_datagram(b"back", sender)
    pair.run(lambda: bool(one.datagrams))
    assert one.datagrams[0][:2] == (b"back", two.address)


def test_datagrams_to_nobody_vanish_without_an_error(pair):
    one, two = listeners(pair)
    pair.hosts[0].send_datagram(b"lost", pair.nowhere)
    pair.hosts[0].send_datagram(b"seen", two.address)
    pair.run(lambda: bool(two.datagrams))
    assert [data for data, _, _ in two.datagrams] == [b"seen"]
    assert one.datagrams == []


def test_streams_carry_bytes_both_ways_in_order(pair):
    _, two = listeners(pair)
    mine, theirs = connect(pair, two)
    chunks = [bytes([n % 251]) * (n * 37 % 3000 + 1) for n in range(200)]
    for chunk in chunks:
        mine.stream.write(chunk)
    theirs.stream.write(b"answer")
    want = b"".join(chunks)
    pair.run(lambda: len(theirs.data) >= len(want) and len(mine.data) >= 6)
    assert bytes(theirs.data) == want
    assert bytes(mine.data) == b"answer"
    assert mine.stream.peer == two.address


def test_an_acceptor_may_write_at_once(pair):
    class Greeter(Recorder):
        def connected(self, stream):
            super().connected(stream)
            stream.write(b"welcome")

    address = pair.hosts[1].listen(pair.addresses[1], lambda *_: None, lambda peer: Greeter())
    mine = Recorder()
    pair.hosts[0].connect(address, mine)
    pair.run(lambda: bytes(mine.data) == b"welcome")
    assert mine.log[0] == "connected"


def test_connecting_to_nobody_tells_closed_once_and_never_connected(pair):
    mine = Recorder()
    pair.hosts[0].connect(pair.nowhere, mine)
    assert mine.log == []
    pair.run(lambda: mine.closed_because is not None)
    assert mine.log == ["closed"]


def test_closing_delivers_what_was_written_and_tells_both_ends(pair):
    _, two = listeners(pair)
    mine, theirs = connect(pair, two)
    mine.stream.write(b"x" * 100_000)
    mine.stream.close()
    assert mine.closed_because is None, "closed must not come inside close()"
    pair.run(lambda: mine.closed_because is not None and theirs.closed_because is not None)
    assert len(theirs.data) == 100_000
    assert mine.log.count("closed") == theirs.log.count("closed") == 1


def test_writing_to_a_closed_stream_is_lost_without_an_error(pair):
    _, two = listeners(pair)
    mine, theirs = connect(pair, two)
    theirs.stream.close()
    pair.run(lambda: mine.closed_because is not None)
    mine.stream.write(b"too late")
    mine.stream.close()
    marker = []
    pair.hosts[0].call_soon(lambda: marker.append(1))
    pair.run(lambda: bool(marker))
    assert mine.log.count("closed") == 1


def test_a_full_buffer_is_congested_until_it_has_drained(pair):
    _, two = listeners(pair)
    mine, theirs = connect(pair, two)
    sent = 0
    while not mine.stream.congested and sent < 1 << 28:
        mine.stream.write(b"y" * 65536)
        sent += 65536
    assert mine.stream.congested
    pair.run(lambda: mine.writable_calls > 0 and len(theirs.data) == sent)
    assert not mine.stream.congested


def test_the_death_of_a_process_closes_its_streams_at_the_other_end(pair):
    _, two = listeners(pair)
    mine, _ = connect(pair, two)
    pair.kill(1)
    pair.run(lambda: mine.closed_because is not None)
    assert mine.log[-1] == "closed"


def test_execute_returns_results_and_exceptions_later_and_leaves_the_thread_free(pair):
    host, outcomes = pair.hosts[0], []
    host.execute(lambda: 6 * 7, outcomes.append, rows=10)
    host.execute(lambda: 1 // 0, outcomes.append, rows=10)
    assert outcomes == [], "done must not come inside execute()"
    pair.run(lambda: len(outcomes) == 2)
    assert 42 in outcomes
    assert any(isinstance(outcome, ZeroDivisionError) for outcome in outcomes)
    assert host.workers >= 1


def test_load_and_memory_are_fractions(pair):
    assert 0.0 <= pair.hosts[0].processors().load <= 2.0
    assert 0.0 <= pair.hosts[0].memory_fraction() <= 1.0
