"""The `http` connector in agents in separate processes, from CREATE SOURCE to a file, through a crash."""

import http.client
import json
import os
import signal
import ssl
import subprocess
from pathlib import Path

import pytest

from sbon_testbed.processes.local import free_ports
from tests.http_servers import certificate, serving
from tests.processes import Process, wait_until
from tests.text_files import whole_lines

STATEMENTS = """
CREATE SOURCE posted (n BIGINT) WITH (connector = 'http', listen = '127.0.0.1:{port}', path = '/in', token_file = '{token}');
CREATE SINK kept FROM (SELECT n FROM posted WHERE n > 0) WITH (connector = 'file', path = '{out}', mode = 'append');
"""


def post(port: int, body: bytes, key: str) -> int:
    """Sends rows until a final answer comes, as a sender does that must lose no row."""
    headers = {"Content-Type": "application/x-ndjson", "Authorization": "Bearer s3cret-word", "Idempotency-Key": key}
    statuses: list[int] = []

    def sent() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("POST", "/in", body, headers)
            statuses.append(connection.getresponse().status)
        except OSError:
            return False
        finally:
            connection.close()
        return statuses[-1] not in (409, 429, 503)

    wait_until(sent)
    return statuses[-1]


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["n"] for line in whole_lines(path)]


def test_posted_rows_arrive_and_a_restarted_agent_listens_again(tmp_path):
    port = free_ports(1)[0]
    token, out = tmp_path / "token", tmp_path / "out.ndjson"
    token.write_text("s3cret-word\n")
    agent = Process(tmp_path, "a", "--bind", "127.0.0.1:0").wait_until_ready()
    try:
        agent.ask("submit", sql=STATEMENTS.format(port=port, token=token, out=out))
        assert post(port, b'{"n": 1}\n{"n": 0}\n{"n": 2}\n', "a") == 200
        assert post(port, b'{"n": 1}\n{"n": 0}\n{"n": 2}\n', "a") == 200
        wait_until(lambda: numbers(out) == [1, 2])
        agent.end(signal.SIGKILL)
        agent = Process(tmp_path, "a", "--bind", "127.0.0.1:0").wait_until_ready()
        assert post(port, b'{"n": 3}\n', "b") == 200
        wait_until(lambda: numbers(out) == [1, 2, 3])
        # Keys are in memory, so a restarted agent does not know this key.
        assert post(port, b'{"n": 1}\n', "a") == 200
        wait_until(lambda: numbers(out) == [1, 2, 3, 1])
        assert "s3cret" not in agent.log.read_text() + json.dumps([agent.ask("queries"), agent.ask("operators")])
    finally:
        agent.end()


def test_rows_go_from_one_query_to_another_over_http(tmp_path):
    """The sink of one query posts to the source of another query, which starts later."""
    first, second = free_ports(2)
    out = tmp_path / "out.ndjson"
    agent = Process(tmp_path, "a", "--bind", "127.0.0.1:0").wait_until_ready()
    listens = (
        "CREATE SOURCE {} (n BIGINT) WITH (connector = 'http', listen = '127.0.0.1:{}', path = '/in', format = '{}', token_file = '{}');"
    )
    (tmp_path / "token").write_text("s3cret-word")
    try:
        agent.ask("submit", sql=listens.format("one", first, "ndjson", tmp_path / "token"))
        options = f"connector = 'http', url = 'http://127.0.0.1:{second}/in', format = 'json', batch_rows_max = 700"
        agent.ask("submit", sql=f"CREATE SINK over FROM (SELECT n + 1 AS n FROM one) WITH ({options}, token_file = '{tmp_path}/token')")
        assert post(first, "".join(f'{{"n": {n}}}\n' for n in range(2000)).encode(), "k") == 200
        agent.ask("submit", sql=listens.format("two", second, "json", tmp_path / "token"))
        agent.ask("submit", sql=f"CREATE SINK kept FROM (SELECT n FROM two) WITH (connector = 'file', path = '{out}')")
        wait_until(lambda: len(numbers(out)) == 2000)
        assert numbers(out) == list(range(1, 2001))
    finally:
        agent.end()


@pytest.mark.soak
def test_a_killed_agent_loses_the_buffer_of_its_http_sink_and_no_more(tmp_path):
    """Rows in transit arrive once, rows in the buffer are lost, and rows after the restart arrive."""
    port = free_ports(1)[0]
    (tmp_path / "token").write_text("s3cret-word")
    agent = Process(tmp_path, "a", "--bind", "127.0.0.1:0").wait_until_ready()
    with serving(200, "silent") as server:
        try:
            takes = f"CREATE SOURCE one (n BIGINT) WITH (connector = 'http', listen = '127.0.0.1:{port}', path = '/in');"
            options = f"connector = 'http', url = '{server.url}', batch_interval = '1 ms'"
            agent.ask("submit", sql=f"{takes} CREATE SINK over FROM (SELECT n FROM one) WITH ({options})")
            assert post(port, b'{"n": 1}\n', "a") == 200
            wait_until(lambda: server.rows == [1])
            assert post(port, b'{"n": 2}\n', "b") == 200
            wait_until(lambda: server.held == 1)
            assert post(port, b'{"n": 3}\n', "c") == 200
            wait_until(lambda: any(one["kind"] == "sink" and one["rows_in"] == 3 for one in agent.ask("operators")))
            agent.end(signal.SIGKILL)
            agent = Process(tmp_path, "a", "--bind", "127.0.0.1:0").wait_until_ready()
            assert post(port, b'{"n": 4}\n', "d") == 200
            wait_until(lambda: server.rows[-1] == 4)
            assert server.rows == [1, 4]
        finally:
            agent.end()


@pytest.mark.soak
def test_a_killed_agent_loses_the_rows_that_its_sink_keeps_for_clients_and_says_so(tmp_path):
    port, listens = free_ports(2)
    agent = Process(tmp_path, "a", "--bind", "127.0.0.1:0").wait_until_ready()

    def events(wanted: str, **headers: str) -> list[str]:
        """Returns the lines up to and including `wanted`."""
        lines: list[str] = []

        def came() -> bool:
            lines.clear()
            connection = http.client.HTTPConnection("127.0.0.1", listens, timeout=60)
            try:
                connection.request("GET", "/?kept=true", headers={name.replace("_", "-"): value for name, value in headers.items()})
                answer = connection.getresponse()
                while wanted not in lines and (line := answer.readline()):
                    lines.append(line.decode().strip())
            except OSError:
                return False
            finally:
                connection.close()
            return wanted in lines

        wait_until(came)
        return lines

    try:
        takes = f"CREATE SOURCE one (n BIGINT) WITH (connector = 'http', listen = '127.0.0.1:{port}', path = '/in');"
        agent.ask("submit", sql=f"{takes} CREATE SINK shown FROM one WITH (connector = 'sse', listen = '127.0.0.1:{listens}')")
        assert post(port, b'{"n": 1}\n{"n": 2}\n', "a") == 200
        before = events('data: {"n":2}')
        last = next(line.removeprefix("id: ") for line in reversed(before) if line.startswith("id: "))
        agent.end(signal.SIGKILL)
        agent = Process(tmp_path, "a", "--bind", "127.0.0.1:0").wait_until_ready()
        assert post(port, b'{"n": 3}\n', "b") == 200
        after = events('data: {"n":3}', Last_Event_ID=last)
        assert [line for line in after if line.startswith(("event", "data"))] == ["event: missed", 'data: {"rows":null}', 'data: {"n":3}']
    finally:
        agent.end()


def test_an_agent_takes_posts_over_tls(tmp_path):
    """Uses the event loop of agents, which has its own TLS implementation."""
    port = free_ports(1)[0]
    out = tmp_path / "out.ndjson"
    certificate(tmp_path)
    agent = Process(tmp_path, "a", "--bind", "127.0.0.1:0").wait_until_ready()
    files = f"tls_certificate = '{tmp_path}/ca.pem', tls_key = '{tmp_path}/key.pem'"
    takes = f"CREATE SOURCE two (n BIGINT) WITH (connector = 'http', listen = '127.0.0.1:{port}', {files});"
    client = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    statuses: list[int] = []

    def sent() -> bool:
        connection = http.client.HTTPSConnection("localhost", port, context=client, timeout=60)
        try:
            for body in (b'{"n": 1}', b"".join(b'{"n": %d}\n' % n for n in range(2, 20_000))):
                connection.request("POST", "/", body, {"Content-Type": "application/x-ndjson"})
                response = connection.getresponse()
                response.read()
                statuses.append(response.status)
        except OSError:
            return False
        finally:
            connection.close()
        return True

    try:
        agent.ask("submit", sql=f"{takes} CREATE SINK kept FROM two WITH (connector = 'file', path = '{out}')")
        wait_until(sent)
        assert statuses == [200, 200]
        wait_until(lambda: len(numbers(out)) == 19_999)
        assert numbers(out) == list(range(1, 20_000))
        assert "Traceback" not in agent.log.read_text()
    finally:
        agent.end()


def test_a_url_is_asked_through_failures_and_again_after_a_crash(tmp_path):
    """A failure is shown as `stalled` with its reason, and ends nothing. After the crash all rows of the first answer come again."""
    out = tmp_path / "out.ndjson"
    agent = Process(tmp_path, "a", "--bind", "127.0.0.1:0").wait_until_ready()
    with serving((404, b"not yet", {})) as server:
        try:
            server.page = (200, b'{"n": 1}\n{"n": 2}\n', {"Content-Type": "application/x-ndjson", "ETag": '"1"'})
            asks = f"CREATE SOURCE asked (n BIGINT) WITH (connector = 'http', url = '{server.url}', interval = '100 ms', rows = 'new');"
            agent.ask("submit", sql=f"{asks} CREATE SINK kept FROM asked WITH (connector = 'file', path = '{out}', mode = 'append')")
            wait_until(lambda: numbers(out) == [1, 2])
            server.page = (200, b'{"n": 2}\n{"n": 3}\n', {"Content-Type": "application/x-ndjson", "ETag": '"2"'})
            wait_until(lambda: numbers(out) == [1, 2, 3])
            server.page = (503, b"closed today", {})
            reason = f"waits on a: {server.url} has answered 503: closed today"
            wait_until(lambda: '"state": "stalled"' in json.dumps(agent.ask("operators")))
            wait_until(lambda: reason in json.dumps(agent.ask("queries")))
            agent.end(signal.SIGKILL)
            server.page = (200, b'{"n": 3}\n{"n": 4}\n', {"Content-Type": "application/x-ndjson", "ETag": '"3"'})
            agent = Process(tmp_path, "a", "--bind", "127.0.0.1:0").wait_until_ready()
            wait_until(lambda: numbers(out) == [1, 2, 3, 3, 4])
            server.page = (200, b'{"n": 4}\n{"n": 5}\n', {"Content-Type": "application/x-ndjson", "ETag": '"4"'})
            wait_until(lambda: numbers(out) == [1, 2, 3, 3, 4, 5])
        finally:
            agent.end()


def test_curl_uploads_a_file_in_chunks(tmp_path):
    """A foreign client: `Transfer-Encoding: chunked` and `Expect: 100-continue` as curl uses them."""
    port = free_ports(1)[0]
    token, out, rows = tmp_path / "token", tmp_path / "out.ndjson", tmp_path / "rows.ndjson"
    token.write_text("s3cret-word")
    rows.write_text("".join(f'{{"n": {n}}}\n' for n in range(1, 50_001)))
    agent = Process(tmp_path, "a", "--bind", "127.0.0.1:0").wait_until_ready()
    try:
        agent.ask("submit", sql=STATEMENTS.format(port=port, token=token, out=out))
        assert post(port, b'{"n": 0}', "first") == 200
        headers = ["Content-Type: application/x-ndjson", "Authorization: Bearer s3cret-word", "Transfer-Encoding: chunked"]
        command = ["curl", "-sS", "-X", "POST", "-T", str(rows), *[word for header in headers for word in ("-H", header)]]
        said = subprocess.run([*command, f"http://127.0.0.1:{port}/in"], capture_output=True, timeout=120, check=True)
        assert json.loads(said.stdout) == {"rows": 50_000, "left_out": 0, "why": []}
        wait_until(lambda: len(numbers(out)) == 50_000)
        assert numbers(out) == list(range(1, 50_001))
    finally:
        agent.end()


if not any(os.access(Path(folder) / "curl", os.X_OK) for folder in os.environ["PATH"].split(os.pathsep)):
    test_curl_uploads_a_file_in_chunks = pytest.mark.skip("curl is not installed")(test_curl_uploads_a_file_in_chunks)
