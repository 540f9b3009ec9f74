"""Peers on real sockets: two agents' connections in one event loop, with each supported kind of event loop."""

import asyncio
import contextlib
import os
import socket
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import structlog

from sbon.errors import ConfigError, LinkError
from sbon.sealing import KeyRing
from sbon_agent.asyncio_host import AsyncioHost, new_event_loop
from sbon_agent.executor import APART_MAX, BRIEF_S_MAX
from sbon_agent.network.shaper import Shape, ShapedHost
from sbon_agent.network.tcp import UNSENT_BYTES
from tests.peer_worlds import Recorder

LOCAL = ("127.0.0.1", 0)
RING, OTHER_RING = KeyRing([bytes(32)]), KeyRing([bytes(range(32))])


class Loop:
    """An event loop, and the hosts opened on it."""

    def __init__(self, loop):
        self.loop = loop
        self.hosts = []

    def host(self, **arguments):
        self.hosts.append(AsyncioHost(self.loop, rng=np.random.default_rng(len(self.hosts)), **arguments))
        return self.hosts[-1]

    def agent(self, name, ring=None, address=LOCAL, **config):
        return Recorder(self.host(), name, ring, address, **config)

    def until(self, condition, timeout_s=60.0):
        async def wait():
            deadline = time.monotonic() + timeout_s
            while not condition():
                assert time.monotonic() < deadline, "the condition never held"
                await asyncio.sleep(0.001)

        self.loop.run_until_complete(wait())

    def close(self):
        for host in self.hosts:
            host.close()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()


@pytest.fixture(params=[asyncio.new_event_loop, new_event_loop], ids=["asyncio", "uvloop"])
def loop(request):
    loop = Loop(request.param())
    yield loop
    loop.close()


@pytest.mark.parametrize("ring", [None, RING], ids=["plain", "sealed"])
def test_messages_and_requests_cross_real_sockets(loop, ring):
    ada, bob = loop.agent("ada", ring), loop.agent("bob", ring)
    ada.peers.want(bob.address)
    loop.until(lambda: ada.log)
    large = os.urandom(5_000_000)
    assert ada.peers.send(bob.address, b"small")
    assert ada.peers.send(bob.address, large)
    outcome = ada.ask(bob.address, large[:100_000])
    loop.until(lambda: outcome and len(bob.messages) == 2)

    assert bob.messages == [b"small", large]
    assert outcome == [b"re: " + large[:100_000]]


def test_a_flood_is_held_back_and_arrives_whole_and_in_order(loop):
    ada, bob = loop.agent("ada", RING), loop.agent("bob", RING)
    ada.peers.want(bob.address)
    loop.until(lambda: ada.log)
    wanted = [n.to_bytes(4, "big") * 50_000 for n in range(100)]
    refusals = 0
    for message in wanted:
        while not ada.peers.send(bob.address, message):
            refusals += 1
            seen = ada.names().count("writable")
            loop.until(lambda seen=seen: ada.names().count("writable") > seen)
    loop.until(lambda: len(bob.messages) == 100)

    assert bob.messages == wanted
    assert refusals > 0


@pytest.mark.parametrize(("ours", "theirs"), [(RING, OTHER_RING), (RING, None), (None, RING)])
def test_wrong_keys_are_told_apart_from_a_broken_network(loop, ours, theirs):
    ada, bob = loop.agent("ada", ours), loop.agent("bob", theirs)
    with structlog.testing.capture_logs() as logs:
        outcome = ada.ask(bob.address, b"?")
        loop.until(lambda: outcome)

    assert isinstance(outcome[0], LinkError)
    assert "peer refuses" in str(outcome[0])
    assert [entry["event"] for entry in logs].count("peer.rejected") == 2


def test_an_agent_that_restarts_on_its_port_is_found_again(loop):
    ada, bob = loop.agent("ada"), loop.agent("bob")
    ada.peers.want(bob.address)
    loop.until(lambda: ada.log)
    bob.host.close()
    loop.until(lambda: len(ada.log) == 2)
    loop.agent("bob the second", address=bob.address)
    loop.until(lambda: len(ada.log) == 3)

    assert ada.names() == ["connected", "lost", "connected"]
    assert ada.log[2][2] == "bob the second"


def test_connections_cut_in_the_middle_come_back(loop):
    ada, bob = loop.agent("ada", RING, dial_backoff_s_max=0.2), loop.agent("bob", RING)
    ada.peers.want(bob.address)
    for times in range(1, 4):
        loop.until(lambda times=times: ada.names().count("connected") == times)
        for stream in list(bob.host._streams.open):
            stream.abort()
        loop.until(lambda times=times: ada.names().count("lost") == times)
    outcome = ada.ask(bob.address, b"?")
    loop.until(lambda: outcome)

    assert outcome == [b"re: ?"]


def test_strangers_on_the_port_harm_nobody(loop):
    ada, bob = loop.agent("ada", RING), loop.agent("bob", RING)
    rng = np.random.default_rng(1)
    strangers = [socket.create_connection(ada.address) for _ in range(20)]
    for stranger in strangers:
        stranger.sendall(rng.bytes(int(rng.integers(1, 2000))))
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for _ in range(20):
        datagrams.sendto(rng.bytes(100), ada.address)
    loop.until(lambda: ada.peers.counters["handshakes_failed"] == 20 and len(ada.datagrams) == 20)
    outcome = bob.ask(ada.address, b"?")
    loop.until(lambda: outcome)
    for stranger in strangers:
        stranger.close()
    datagrams.close()

    assert outcome == [b"re: ?"]
    assert ada.host.counters["callbacks_failed"] == 0


def test_goodbyes_leave_before_the_host_closes(loop):
    ada, bob = loop.agent("ada", RING), loop.agent("bob", RING)
    ada.peers.want(bob.address)
    loop.until(lambda: ada.log and any(connection.is_ready for connection in bob.peers._connections))
    bob.peers.close()
    loop.loop.run_until_complete(bob.host.drain(5.0))
    bob.host.close()
    loop.until(lambda: len(ada.log) == 2)

    assert "closed by the peer: leaving" in ada.log[1][2]


def test_an_exception_in_a_callback_is_logged_and_nothing_else_happens(loop):
    host, log = loop.host(), []
    with structlog.testing.capture_logs() as logs:
        host.call_soon(lambda: 1 // 0)
        host.call_at(host.now(), lambda: 1 // 0)
        host.execute(lambda: 1, lambda result: 1 // 0, rows=1)
        loop.until(lambda: host.counters["callbacks_failed"] == 3)
        host.call_soon(lambda: log.append("alive"))
        loop.until(lambda: log)

    assert [entry["event"] for entry in logs] == ["callback.failed"] * 3


def test_a_handler_that_fails_loses_its_own_connection_only(loop):
    ada, bob = loop.agent("ada"), loop.agent("bob")
    bob.message = lambda connection, payload: 1 // 0
    ada.peers.want(bob.address)
    loop.until(lambda: ada.log)
    with structlog.testing.capture_logs() as logs:
        ada.peers.send(bob.address, b"boom")
        loop.until(lambda: ada.names().count("connected") == 2)
    outcome = ada.ask(bob.address, b"?")
    loop.until(lambda: outcome)

    assert outcome == [b"re: ?"]
    assert "callback.failed" in [entry["event"] for entry in logs]


@pytest.mark.alone
def test_a_datagrams_arrival_is_timed_by_the_kernel(loop):
    """A datagram that waits in the socket's buffer while the loop is busy has the time of its arrival."""
    host, arrivals = loop.host(), []
    address = host.listen(LOCAL, lambda data, sender, at: arrivals.append((host.now(), at)), lambda peer: None)
    if not host._udp[0].has_kernel_stamps:
        pytest.skip("the kernel does not stamp datagrams")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for number in range(1, 6):
            before = time.monotonic()
            sender.sendto(b"x", address)
            sent_at = time.monotonic()
            while time.monotonic() < sent_at + 0.05:  # a busy process
                sum(range(1000))
            loop.until(lambda number=number: len(arrivals) == number)
            read_at, arrived_at = arrivals[-1]
            assert read_at - before >= 0.05
            if arrived_at - before < 0.02:
                return
    pytest.fail("in each of five rounds the busy process delayed the datagram, or another process delayed the sender")


def test_udp_and_tcp_share_the_port_that_was_chosen_and_a_taken_one_is_refused(loop):
    addresses = [loop.host().listen(LOCAL, lambda *_: None, lambda peer: None) for _ in range(20)]
    assert len({port for _, port in addresses}) == 20
    taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    taken.bind(LOCAL)
    with pytest.raises(ConfigError, match="in use"):
        loop.host().listen(taken.getsockname(), lambda *_: None, lambda peer: None)
    taken.close()
    with pytest.raises(ConfigError, match=r"cannot listen on 203\.0\.113\.1:0"):
        loop.host().listen(("203.0.113.1", 0), lambda *_: None, lambda peer: None)
    with pytest.raises(ConfigError, match="expected an address of this machine"):
        loop.host().listen(("x" * 64, 0), lambda *_: None, lambda peer: None)


def test_ipv6_works_like_ipv4(loop):
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
        probe.bind(("::1", 0))
        ada, bob = loop.agent("ada", address=("::1", 0)), loop.agent("bob", address=("::1", 0))
        ada.host.send_datagram(b"ping", bob.address)
        outcome = ada.ask(bob.address, b"?")
        loop.until(lambda: outcome and bob.datagrams)
        assert outcome == [b"re: ?"]
        return
    pytest.skip("this machine has no IPv6")


def test_host_names_are_resolved_for_streams_and_datagrams(loop):
    ada, bob = loop.agent("ada"), loop.agent("bob")
    by_name = ("localhost", bob.address[1])
    ada.host.send_datagram(b"first", by_name)
    outcome = ada.ask(by_name, b"?")
    loop.until(lambda: outcome and bob.datagrams)
    ada.host.send_datagram(b"second", by_name)
    loop.until(lambda: len(bob.datagrams) == 2)
    ada.host.send_datagram(b"lost", ("x" * 64, 1))  # an invalid name: a label has at most 63 letters
    ada.host.send_datagram(b"lost", ("127.0.0.1", 70_000))
    nowhere = [ada.ask(("x" * 64, 1), b"?"), ada.ask(("127.0.0.1", 70_000), b"?")]
    loop.until(lambda: ada.host.counters["datagrams_unsendable"] == 2 and all(nowhere))
    assert all(isinstance(outcome[0], LinkError) for outcome in nowhere)

    assert outcome == [b"re: ?"]
    assert bob.datagrams == [b"first", b"second"]


def test_a_datagram_that_is_too_long_is_counted(loop):
    ada = loop.agent("ada")
    ada.host.send_datagram(bytes(70_000), ada.address)

    assert ada.host.counters["datagrams_unsendable"] == 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel takes as much as it likes")
def test_the_kernel_takes_little_more_than_is_on_the_line(loop):
    """Bytes that wait in the kernel would look sent, and a slow line would look fast."""
    with socket.create_server(LOCAL) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        host, opened = loop.host(), []
        handler = SimpleNamespace(connected=opened.append, closed=lambda reason: None, writable=lambda: None, received=lambda data: None)
        host.connect(server.getsockname(), handler)
        loop.until(lambda: opened)
        (stream,) = opened
        assert stream.held_up_s == 0
        offered = 0
        while offered < 8 * 2**20 and not stream.congested:
            stream.write(bytes(16 * 1024))
            offered += 16 * 1024
            loop.loop.run_until_complete(asyncio.sleep(0))

        assert stream.congested
        assert offered - stream.unsent_bytes < 3 * UNSENT_BYTES
        loop.until(lambda: stream.held_up_s > 0.05)  # nobody reads


def test_work_runs_on_threads_and_its_result_comes_on_the_loops(loop):
    host, outcomes = loop.host(workers=2), []
    both = threading.Barrier(2, timeout=60)
    for _ in range(2):
        host.execute(
            lambda: (both.wait(), threading.get_ident())[1], lambda thread: outcomes.append((thread, threading.get_ident())), rows=1
        )
    loop.until(lambda: len(outcomes) == 2)

    assert host.workers == 2
    assert len({thread for thread, _ in outcomes}) == 2
    assert {finished for _, finished in outcomes} == {threading.get_ident()}


def test_work_goes_to_the_thread_that_was_at_work_last(loop):
    host, threads, both = loop.host(workers=2), [], threading.Barrier(2, timeout=60)
    started = []
    for _ in range(2):
        host.execute(lambda: both.wait(), started.append, rows=1)
    loop.until(lambda: len(started) == 2)

    def again(thread: int) -> None:
        threads.append(thread)
        if len(threads) < 50:
            host.execute(threading.get_ident, again, rows=1)

    host.execute(threading.get_ident, again, rows=1)
    loop.until(lambda: len(threads) == 50)

    assert len(set(threads)) == 1


def test_work_for_which_no_thread_is_free_waits_in_order(loop):
    host, begun, done, release = loop.host(workers=2), [], [], threading.Event()
    held = threading.Event()
    host.execute(held.wait, done.append, rows=1)  # one thread stays busy, so that the order of the other thread's work is certain
    for number in range(20):
        host.execute(lambda number=number: (begun.append(number), release.wait(60)), done.append, rows=1)
    loop.until(lambda: begun == [0])
    release.set()
    loop.until(lambda: len(done) == 20)
    held.set()
    loop.until(lambda: len(done) == 21)

    assert begun == list(range(20))


def test_spare_work_begins_only_when_nothing_else_waits(loop):
    host, begun, done, held = loop.host(workers=1), [], [], threading.Event()
    host.execute(held.wait, done.append, rows=1)
    for name in ("first spare", "second spare"):
        host.execute(lambda name=name: begun.append(name), done.append, rows=1, spare=True)
    for name in ("first", "second"):
        host.execute(lambda name=name: begun.append(name), done.append, rows=1)
    held.set()
    loop.until(lambda: len(done) == 5)

    assert begun == ["first", "second", "first spare", "second spare"]


@pytest.mark.alone
def test_brief_work_is_done_on_the_loops_thread_and_told_later(loop):
    host, outcomes, failures = loop.host(workers=1), [], []
    host.execute(threading.get_ident, outcomes.append, rows=1, brief=True)
    host.execute(lambda: 1 // 0, failures.append, rows=1, brief=True)

    assert (outcomes, failures) == ([], [])  # never from inside `execute`, as its caller is not finished
    loop.until(lambda: outcomes and failures)
    assert outcomes == [threading.get_ident()]
    assert isinstance(failures[0], ZeroDivisionError)


@pytest.mark.alone
def test_brief_work_leaves_most_of_the_loops_time_to_others(loop):
    """Work that is wrongly declared brief must not keep the loop from probes and timers."""
    host, outcomes = loop.host(workers=1), []

    def longer_than_may_be_spared():
        until = time.perf_counter() + 20 * BRIEF_S_MAX
        while time.perf_counter() < until:
            pass

    host.execute(longer_than_may_be_spared, lambda _: None, rows=1, brief=True)
    host.execute(threading.get_ident, outcomes.append, rows=1, brief=True)
    loop.until(lambda: outcomes)

    assert outcomes != [threading.get_ident()]


def test_a_closed_host_calls_nobody_back(loop):
    host, log = loop.host(), []
    release = threading.Event()
    host.call_at(host.now(), lambda: log.append("timer"))
    host.call_soon(lambda: log.append("soon"))
    host.execute(lambda: release.wait(60), log.append, rows=1)
    host.close()
    release.set()
    loop.loop.run_until_complete(asyncio.sleep(0))
    host._executor.close(wait=True)
    loop.loop.run_until_complete(asyncio.sleep(0))

    assert log == []


@pytest.mark.alone
def test_shaped_agents_are_as_far_apart_as_the_table_says(loop):
    """Each delay is reduced by half of the loop's timer resolution, so that the mean is right."""
    one, two = ShapedHost(loop.host()), ShapedHost(loop.host())
    ada, bob = Recorder(one, "ada", None, LOCAL), Recorder(two, "bob", None, LOCAL)
    for shaped, other in ((one, bob), (two, ada)):
        shaped.set(Shape(delays_ms={"{}:{}".format(*other.address): 20.0}))
    ada.peers.want(bob.address)
    loop.until(lambda: ada.log)
    round_trips_ms = []
    for _ in range(15):
        began = time.monotonic()
        outcome = ada.ask(bob.address, b"?")
        loop.until(lambda outcome=outcome: outcome)
        round_trips_ms.append((time.monotonic() - began) * 1000)

    assert 39.0 <= min(round_trips_ms) < 50  # 41 on an idle machine, also in the median; other programs add to it


def test_work_that_hangs_keeps_neither_the_loop_nor_the_threads_of_operators(loop):
    host = loop.host(workers=1)
    told, gate = [], threading.Event()
    for _ in range(APART_MAX):
        host.execute_apart(gate.wait, told.append, 0.05)
    host.execute_apart(lambda: "never", told.append, 60.0)
    host.execute(lambda: "others", told.append, rows=0)
    loop.until(lambda: len(told) == APART_MAX + 2)
    late = [outcome for outcome in told if isinstance(outcome, TimeoutError)]
    assert sorted(map(str, late)) == sorted(["it has not returned in 0.05 s"] * APART_MAX + [f"{APART_MAX} others have not returned yet"])
    assert "others" in told

    gate.set()

    def again():
        """Tells whether returned threads have made room."""
        host.execute_apart(lambda: "once more", told.append, 60.0)
        return "once more" in told

    loop.until(again)
    assert True not in told, "the result of late work must be dropped"


def test_work_of_its_own_thread_tells_what_has_come_of_it(loop):
    host, told = loop.host(), []

    def fail():
        raise OSError("no such thing")

    host.execute_apart(threading.current_thread, told.append, 60.0)
    host.execute_apart(fail, told.append, 60.0)
    loop.until(lambda: len(told) == 2)
    assert {type(outcome) for outcome in told} == {threading.Thread, OSError}
    assert threading.main_thread() not in told
