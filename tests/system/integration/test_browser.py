"""Sinks for browsers, with a real browser: an agent in a separate process, a page from another server, and its `EventSource`."""

import http.client
import http.server
import json
import shutil
import subprocess
import threading
from typing import Any

import pytest

from sbon_testbed.processes.local import free_ports
from tests.processes import Process, wait_until

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no browser is installed (Debian: apt-get install chromium)"),
    pytest.mark.slow,
]

PAGE = """<!doctype html><title>rows</title><ol></ol><script>
const shown = [];
const say = path => fetch(path, {method: "POST", body: JSON.stringify(shown)});
const line = text => Object.assign(document.createElement("li"), {textContent: text});
const show = text => { shown.push(text); document.querySelector("ol").append(line(text)); };
SCRIPT
</script>"""
EVENTS = """
const source = new EventSource("http://ADDRESS/rows?kept=true&token=s3cret-word");
source.onopen = () => say("/open");
source.onmessage = event => { const row = JSON.parse(event.data); show(`${row.n} ${row.t}`); if (row.n == 5) say("/seen"); };
source.addEventListener("end", event => { source.close(); show(JSON.parse(event.data).reason); say("/done"); });
"""
SOCKET = """
const socket = new WebSocket("ws://ADDRESS/rows?kept=true&token=s3cret-word");
socket.onopen = () => say("/open");
socket.onmessage = event => { const row = JSON.parse(event.data); show(`${row.n} ${row.t}`); if (row.n == 5) say("/seen"); };
socket.onclose = event => { show(`${event.code} ${event.reason} ${event.wasClean}`); say("/done"); };
"""
OVER = "the query has ended, or the agent stops"


class Pages:
    """Serves a page, and gets the reports of its script."""

    def __init__(self, page: str) -> None:
        self.said: dict[str, str] = {}
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.reply(page.encode() if self.path == "/" else b"")

            def do_POST(self) -> None:
                outer.said[self.path] = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
                self.reply(b"")

            def reply(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Logs nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def post(port: int, body: bytes) -> None:
    def sent() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("POST", "/", body, {"Content-Type": "application/x-ndjson"})
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    wait_until(sent)


@pytest.mark.parametrize(
    ("connector", "script", "reason"), [("sse", EVENTS, OVER), ("websocket", SOCKET, f"1000 {OVER} true")], ids=["sse", "websocket"]
)
def test_a_page_shows_the_rows_of_a_query(tmp_path, connector, script, reason):
    """The page gets earlier rows, rows that come while it listens, and the end of the query."""
    if connector == "websocket":
        pytest.importorskip("wsproto", reason="the library wsproto is not installed: pip install -e .")
    posted_at, listened_at = free_ports(2)
    (tmp_path / "token").write_text("s3cret-word")
    pages = Pages(PAGE.replace("SCRIPT", script.replace("ADDRESS", f"127.0.0.1:{listened_at}")))
    agent = Process(tmp_path, "a", "--bind", "127.0.0.1:0").wait_until_ready()
    browser: subprocess.Popen[bytes] | None = None
    try:
        takes = f"CREATE SOURCE posted (n BIGINT, t TEXT) WITH (connector = 'http', listen = '127.0.0.1:{posted_at}');"
        options = f"listen = '127.0.0.1:{listened_at}', path = '/rows', token_file = '{tmp_path}/token', origins = '{pages.origin}'"
        agent.ask("submit", sql=f"{takes} CREATE SINK board FROM posted WITH (connector = '{connector}', {options})")
        post(posted_at, b'{"n": 1, "t": "\xc3\xa9\xe2\x80\xa8"}\n{"n": 2}\n')
        assert BROWSER is not None
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={tmp_path}/profile"]
        browser = subprocess.Popen([*command, pages.origin], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: "/open" in pages.said)
        post(posted_at, b'{"n": 3}\n{"n": 4}\n{"n": 5, "t": "<b>"}\n')
        wait_until(lambda: "/seen" in pages.said)
        agent.ask("submit", sql="DROP SINK board")
        wait_until(lambda: "/done" in pages.said)
        assert json.loads(pages.said["/done"]) == ["1 é\u2028", "2 null", "3 null", "4 null", "5 <b>", reason]
    finally:
        if browser is not None:
            browser.terminate()
            browser.wait(60)
        agent.end()
        pages.stop()
