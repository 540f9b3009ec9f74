"""The control socket over real Unix sockets: permissions, hostile clients, limits."""

import contextlib
import os
import socket
import stat
import time
from collections.abc import Callable

import pytest

from sbon.cli.client import ControlClient, RefusedError, UnreachableError, find_socket
from sbon.control import REPLY_BYTES_MAX, ControlReply, ControlRequest, FrameReader, decode, encode
from sbon.errors import ConfigError
from sbon_agent.control import ControlConfig, DataDirectory
from tests.canned_agent import STATUS, FakeAgent, serving


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Waits for a condition on another thread, with very short pauses."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition has not come true in time"
        os.sched_yield()


def raw(path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(60)
    with contextlib.chdir(path.parent):  # the path may be longer than the kernel allows
        connection.connect(path.name)
    return connection


def replies(connection: socket.socket) -> list[ControlReply]:
    """Returns all replies until the other side closes the connection."""
    reader = FrameReader(REPLY_BYTES_MAX)
    bodies = []
    while data := connection.recv(1 << 16):
        bodies += reader.receive(data)
    return [decode(body, ControlReply) for body in bodies]


def test_question_is_answered_and_the_socket_is_the_owner_s_alone(tmp_path):
    with serving(tmp_path, FakeAgent()) as server:
        assert stat.S_IMODE(os.stat(server.path).st_mode) == 0o600
        with ControlClient(server.path) as client:
            assert client.ask("status") == STATUS
            assert client.ask("rtt", a="x", b=None)["b"] == "ams1"
    assert not server.path.exists()


def test_path_longer_than_the_kernel_takes_works_all_the_same(tmp_path):
    directory = tmp_path / ("d" * 60) / ("e" * 60)
    directory.mkdir(parents=True)

    with serving(directory, FakeAgent()) as server, ControlClient(server.path) as client:
        assert client.ask("status")["name"] == "ams1"


def test_socket_left_by_a_crash_is_replaced(tmp_path):
    left = socket.socket(socket.AF_UNIX)
    with contextlib.chdir(tmp_path):
        left.bind("control.sock")
    left.close()
    with pytest.raises(UnreachableError, match="is not running"):
        ControlClient(tmp_path / "control.sock")

    with serving(tmp_path, FakeAgent()) as server, ControlClient(server.path) as client:
        assert client.ask("status")["name"] == "ams1"


def test_refusal_reaches_the_client_as_an_error_and_the_connection_goes_on(tmp_path):
    with serving(tmp_path, FakeAgent()) as server, ControlClient(server.path) as client:
        with pytest.raises(RefusedError, match="not now"):
            client.ask("refuse")
        assert client.ask("status")["name"] == "ams1"


def test_bug_behind_a_command_is_told_and_takes_nobody_down(tmp_path, capsys):
    with serving(tmp_path, FakeAgent()) as server, ControlClient(server.path) as client:
        with pytest.raises(RefusedError, match=r"break failed inside the agent \(ZeroDivisionError: a bug\)"):
            client.ask("break")
        assert client.ask("status")["name"] == "ams1"


def test_stream_ends_at_the_limit_and_hanging_up_cancels_it(tmp_path):
    agent = FakeAgent()
    with serving(tmp_path, agent) as server:
        with ControlClient(server.path) as client:
            assert [batch["rows"] for batch in client.stream("tail", query="q1", limit=2)] == [agent.tail_rows]
        with ControlClient(server.path) as client:
            stream = client.stream("tail", query="q1")
            assert next(stream)["columns"] == ["region", "cpu", "alert"]
            assert agent.cancelled == []
            stream.close()
            wait_until(lambda: agent.cancelled == [agent.asked[-1].id])


def test_nonsense_is_answered_once_counted_and_hung_up_on(tmp_path):
    with serving(tmp_path, FakeAgent()) as server:
        for nonsense in (b"GET / HTTP/1.1\r\n\r\n", (3).to_bytes(4, "big") + b"\xc1\xc1\xc1", b"\xff\xff\xff\xff"):
            with raw(server.path) as connection:
                connection.sendall(nonsense)
                said = replies(connection)
            assert len(said) == 1
            assert said[0].final
            assert said[0].error is not None
        with raw(server.path) as connection:
            connection.sendall(b"\x00\x00\x00\x10half a fra")
        with ControlClient(server.path) as client:
            assert client.ask("status")["name"] == "ams1"
        assert server.counters["control_requests_bad"] == 3


def test_clients_beyond_the_bound_are_told_and_let_go(tmp_path):
    with serving(tmp_path, FakeAgent(), ControlConfig(clients_max=2)) as server:
        first, second = ControlClient(server.path), ControlClient(server.path)
        assert first.ask("status") == second.ask("status")
        with raw(server.path) as third:
            assert "2 clients already" in str(replies(third)[0].error)
        first.close()
        second.close()
        assert server.counters["control_clients_refused"] == 1


def test_requests_beyond_the_bound_and_of_one_number_are_refused(tmp_path):
    agent = FakeAgent()
    with serving(tmp_path, agent, ControlConfig(requests_max=2)) as server, raw(server.path) as connection:
        for request_id in (1, 1, 2, 3):
            connection.sendall(encode(ControlRequest(request_id, "silence")))
        reader = FrameReader(REPLY_BYTES_MAX)
        said: list[ControlReply] = []
        while len(said) < 2:
            said += [decode(body, ControlReply) for body in reader.receive(connection.recv(1 << 16))]

    assert [(reply.id, reply.final) for reply in said] == [(1, True), (3, True)]
    assert "under way already" in str(said[0].error)
    assert "2 requests are under way" in str(said[1].error)
    wait_until(lambda: sorted(agent.cancelled) == [1, 2])


def test_reader_too_slow_for_its_stream_is_cut_off_with_a_reason(tmp_path):
    agent = FakeAgent()
    agent.tail_rows = []
    with serving(tmp_path, agent, ControlConfig(buffer_bytes_max=1 << 16)) as server, raw(server.path) as connection:
        connection.sendall(encode(ControlRequest(5, "tail", {"query": "q1"})))
        wait_until(lambda: 5 in agent.streams)
        batch = ControlReply(5, final=False, result={"columns": ["x"], "rows": [["y" * 1000]] * 100})
        for _ in range(40):
            agent.loop.call_soon_threadsafe(agent.streams[5], batch)
        wait_until(lambda: agent.cancelled == [5])
        connection.shutdown(socket.SHUT_WR)
        said = replies(connection)

    assert 1 <= len(said) < 40
    assert said[-1].final
    assert "arrive faster than they are read" in str(said[-1].error)
    assert server.counters["control_clients_too_slow"] == 1


def test_data_directory_has_one_owner_at_a_time(tmp_path):
    owner = DataDirectory(tmp_path / "data")
    with pytest.raises(ConfigError, match=rf"belongs to a running agent \(process {os.getpid()}\); stop it or choose another"):
        DataDirectory(tmp_path / "data")
    owner.close()

    DataDirectory(tmp_path / "data").close()


def test_data_directory_that_cannot_be_made_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match=r"cannot use the data directory .*/file/data: Not a directory"):
        DataDirectory(tmp_path / "file" / "data")


def test_socket_is_looked_for_where_the_user_says(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SBON_SOCKET", raising=False)
    assert find_socket() == tmp_path / ".local/state/sbon/control.sock"
    assert find_socket(str(tmp_path)) == tmp_path / "control.sock"
    assert find_socket("/run/a.sock").as_posix() == "/run/a.sock"
    monkeypatch.setenv("SBON_SOCKET", "/run/b.sock")
    assert find_socket().as_posix() == "/run/b.sock"


def test_nobody_at_the_socket_says_what_to_do(tmp_path):
    with pytest.raises(UnreachableError, match=r"no agent at .*; start one with `sbon agent`"):
        ControlClient(tmp_path / "control.sock")


def test_what_is_no_agent_is_told_apart(tmp_path):
    listener = socket.socket(socket.AF_UNIX)
    with contextlib.chdir(tmp_path):
        listener.bind("control.sock")
    listener.listen()
    client = ControlClient(tmp_path / "control.sock")
    other, _ = listener.accept()
    other.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(UnreachableError, match="is no sbon agent of this version"):
        client.ask("status")
    client.close()
    other.close()
    listener.close()
