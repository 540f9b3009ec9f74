"""Connector `http` as a source that takes rows by POST: `listen = '127.0.0.1:8080'`. Its options are in `http_source`.

A whole body waits undecoded until the query has room. Then its rows are decoded and given to the query, and after that the request is
answered. A body that has waited for `answer_within` is removed from the queue and answered with status 429; none of its rows has been given
out. A body for which there is no memory gets 429 at once. A peer without an answer cannot know whether its rows were taken; with an
`Idempotency-Key` it may send them again.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from sbon.connectors.http_bodies import FORMATS, BodyError, BodyReader, format_of
from sbon.connectors.http_repeats import KEY_CHARACTERS_MAX, Repeats
from sbon.connectors.interface import BATCH_ROWS, BATCH_ROWS_MAX, Polled
from sbon.connectors.row_batches import Rows, count, cut
from sbon.errors import ConnectorError
from sbon.formats.http_answers import Answer, refusal
from sbon.misfits import Misfits
from sbon.options import Options
from sbon.query.params.source import SourceParams
from sbon_agent.connectors.addresses import SocketPlace, loop_of
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.http_server import REQUEST_OVERHEAD_BYTES, HttpServer, Request, read_listen, read_path
from sbon_agent.connectors.secret_files import SecretFile
from sbon_agent.connectors.tls_files import TlsFiles

SMALL_BYTES_MAX = 64 * 1024
"""Waiting bodies of NDJSON up to this size are decoded together."""
TOGETHER_BYTES_MAX = 1 << 20
"""Size in total at which no further body is added. If a row does not fit, each body is decoded again by itself."""


class _Post(NamedTuple):
    """A request that waits for the query."""

    request: Request
    kind: str
    body: bytes
    key: str | None
    until: float
    """Monotonic instant at which the request is given up."""

    @property
    def is_small(self) -> bool:
        """Tells whether the body may be decoded together with others."""
        return self.kind == "ndjson" and len(self.body) <= SMALL_BYTES_MAX


class _Answered(NamedTuple):
    """A request, and the answer that it gets once its rows have been given out."""

    post: _Post
    answer: Answer
    rows: int
    """Rows of its body that have not been given out yet."""


class _Begun(NamedTuple):
    """Decoded bodies whose rows are being given to the query."""

    rows: Rows
    """Rows that have not been given out yet."""
    answers: list[_Answered]
    """In the order of the rows."""


class PostSource:
    """Takes rows by POST. Requests arrive on the event loop, `poll` runs on an executor thread; `_lock` guards their shared attributes."""

    threaded = True

    def __init__(self, params: SourceParams, context: ConnectorContext, options: Options) -> None:
        what = f"source {params.name}"
        self._loop = loop_of(what, params.connector, context)
        host, port = read_listen(options)
        place = SocketPlace(what, host, port, context.reach, listens=True, option="listen")
        self._path = read_path(options)
        self._format = options.choice("format", FORMATS, "") or None
        self._token = SecretFile.of_option(what, options, "token_file", context.reach)
        body_bytes_max = options.integer("body_bytes_max", 1 << 20, 1, 256 << 20)
        held_bytes_max = options.integer("buffer_bytes_max", max(16 << 20, 2 * body_bytes_max), 4096, 1 << 30)
        if held_bytes_max < body_bytes_max + REQUEST_OVERHEAD_BYTES:
            least = body_bytes_max + REQUEST_OVERHEAD_BYTES
            raise options.refuse("buffer_bytes_max", held_bytes_max, f"at least {least}, so that there is room for one body")
        self._answer_within_s = options.duration_us("answer_within", 10_000_000) / 1e6
        self._batch_rows_max = options.integer("batch_rows_max", BATCH_ROWS, 1, 1_000_000)
        self.batch_rows = BATCH_ROWS_MAX
        self._server = HttpServer(
            what,
            place,
            TlsFiles.of_options(what, options, context.reach),
            self,
            connections_max=options.integer("connections_max", 64, 1, 4096),
            body_bytes_max=body_bytes_max,
            held_bytes_max=held_bytes_max,
            body_timeout_s=options.duration_us("body_timeout", 30_000_000) / 1e6,
        )
        keys_max = options.integer("idempotency_keys_max", 10_000, 0, 1_000_000)
        self._repeats = Repeats(keys_max, options.duration_us("idempotency_window", 600_000_000) / 1e6, time.monotonic)
        self.misfits = Misfits()
        self._reader = BodyReader(params, options, self.misfits)
        options.finish()
        self._lock = threading.Lock()
        self._waiting: deque[_Post] = deque()
        self._begun: _Begun | None = None
        self._alone = 0
        """Number of waiting bodies, from the first, to decode one by one, because one of their rows did not fit when decoded together."""
        self._timer: asyncio.TimerHandle | None = None
        self._ready: Callable[[], None] = lambda: None
        self._error: ConnectorError | None = None
        self._stopped = False

    @property
    def dropped_rows(self) -> int:
        """Rows that did not fit."""
        return self.misfits.rows

    @property
    def remark(self) -> str:
        """Tells of rows from the future, or of a new certificate that cannot be used."""
        return "; ".join(filter(None, (self._reader.remark, self._server.remark)))

    @property
    def address(self) -> tuple[str, int] | None:
        """Address on which the source listens; None before it does."""
        return self._server.address

    @property
    def held_bytes(self) -> int:
        """Bytes of requests that are being read or wait for the query."""
        return self._server.held_bytes

    def open(self) -> None:
        """Checks the address and reads token, certificate and key."""
        self._server.check()
        if self._token is not None:
            self._token.read()

    def start(self, ready: Callable[[], None]) -> None:
        """Starts to listen."""
        self._ready = ready
        self._server.start(self._loop, self._fail)

    def stop(self) -> None:
        """Closes all connections. Waiting requests, whose rows have not been given out, are answered with status 503."""
        if self._stopped:
            return
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            waiting, self._waiting = list(self._waiting), deque()
            begun, self._begun = self._begun, None
        for post in waiting:
            self._give_up(post, refusal(503, "the query has ended or the agent stops: none of these rows was taken", Retry_After="1"))
        for one in begun.answers if begun is not None else ():
            one.post.request.abandon()
        self._server.stop()

    # --------------------------------------------------------------------------------------------- http_server.Handler

    def admit(self, request: Request) -> Answer | None:
        """Checks the head of a request. The token comes first, so that a stranger learns nothing else."""
        if self._token is not None:
            given = (request.header("authorization") or "").encode("latin-1", "replace")
            if not hmac.compare_digest(given, b"Bearer " + self._token.value):
                return refusal(401, "the Authorization header does not have the token of this source", WWW_Authenticate="Bearer")
        elif request.has_header("origin"):
            return refusal(403, "this request comes from a web page (Origin): a source without token_file refuses such requests")
        if request.path != self._path:
            return refusal(404, f"there is nothing at this path, expected {self._path}")
        if request.method != "POST":
            return refusal(405, f"the method is {request.method[:20]}, expected POST", Allow="POST")
        key = request.header("idempotency-key")
        if (key is None and request.has_header("idempotency-key")) or (key is not None and not 0 < len(key) <= KEY_CHARACTERS_MAX):
            return refusal(400, f"Idempotency-Key must come once, with 1 to {KEY_CHARACTERS_MAX} characters")
        try:
            format_of(request.header("content-type"), self._format)
        except BodyError as error:
            return refusal(415, str(error))
        return None

    def handle(self, request: Request) -> None:
        """Queues a body, unless its `Idempotency-Key` is known."""
        if self._stopped:
            request.answer(refusal(503, "the query has ended or the agent stops: none of these rows was taken", Retry_After="1"))
            return
        kind = format_of(request.header("content-type"), self._format)
        key = request.header("idempotency-key")
        if key is not None:
            known = self._repeats.begin(key, hashlib.sha256(kind.encode() + b"\0" + request.body).digest())
            if known is not None:
                request.answer(known)
                return
        with self._lock:
            self._waiting.append(_Post(request, kind, request.body, key, time.monotonic() + self._answer_within_s))
        if self._timer is None:
            self._timer = self._loop.call_later(self._answer_within_s, self._look_for_late)
        self._ready()

    def _look_for_late(self) -> None:
        """Gives up requests that have waited too long."""
        now, late = time.monotonic(), []
        with self._lock:
            while self._waiting and self._waiting[0].until <= now:
                late.append(self._waiting.popleft())
            wake = self._waiting[0].until if self._waiting else None
        for post in late:
            self._give_up(post, refusal(429, "the query is slow, none of these rows was taken: try again later", Retry_After="1"))
        self._timer = None if wake is None else self._loop.call_later(max(0.0, wake - now) + 0.001, self._look_for_late)

    def _give_up(self, post: _Post, answer: Answer) -> None:
        if post.key is not None:
            self._repeats.forget(post.key)
        post.request.answer(answer)

    def _fail(self, error: ConnectorError) -> None:
        self._error = error
        self._ready()

    # --------------------------------------------------------------------------------------- on the thread of `poll`

    def poll(self, now: float, wall: float) -> Polled:
        """Returns rows of the waiting bodies, and has each body answered whose last row is among them."""
        if self._error is not None:
            raise self._error
        room = max(1, min(self.batch_rows, self._batch_rows_max))
        parts: list[Rows] = []
        settled: list[_Answered] = []
        while room > 0:
            begun = self._begun or self._next(wall)
            if begun is None:
                break
            part, rest = cut(begun.rows, room)
            given = count(part)
            room -= given
            if given:
                parts.append(part)
            over, left = _handed_on(begun.answers, given)
            settled += over
            self._begun = _Begun(rest, left) if left else None
        if settled:
            self._loop.call_soon_threadsafe(self._settle, settled)
        next_poll = now if self._begun is not None or self._waiting else None
        return self._reader.polled(parts, next_poll)

    def _next(self, wall: float) -> _Begun | None:
        """Decodes the next body, or the next few small ones together."""
        posts = self._next_posts()
        if not posts:
            return None
        if len(posts) > 1:
            read = self._reader.read_together([post.body for post in posts], wall)
            if read is not None:
                rows, counts = read
                return _Begun(rows, [_Answered(post, _taken(number), number) for post, number in zip(posts, counts, strict=True)])
            with self._lock:
                self._waiting.extendleft(reversed(posts[1:]))
            self._alone = len(posts) - 1
        return self._read(posts[0], wall)

    def _next_posts(self) -> list[_Post]:
        """Removes the bodies to decode now from the queue: several if they are small and are not to be decoded one by one."""
        posts: list[_Post] = []
        with self._lock:
            size = 0
            while self._waiting and (not posts or (self._waiting[0].is_small and posts[0].is_small and size < TOGETHER_BYTES_MAX)):
                posts.append(self._waiting.popleft())
                size += len(posts[-1].body)
                if self._alone:
                    self._alone -= 1
                    break
        return posts

    def _read(self, post: _Post, wall: float) -> _Begun:
        try:
            body = self._reader.read(post.kind, post.body, wall)
        except BodyError as error:
            return _Begun(self._reader.none, [_Answered(post, refusal(400, str(error)), 0)])
        rows = count(body.rows)
        answer = _taken(rows, body.left_out, [f"{kind.text} ({kind.rows:,} row{'' if kind.rows == 1 else 's'})" for kind in body.why])
        return _Begun(body.rows, [_Answered(post, answer, rows)])

    def _settle(self, settled: list[_Answered]) -> None:
        """Answers requests whose rows the query has taken; on the event loop."""
        for one in settled:
            if one.post.key is not None:
                self._repeats.settle(one.post.key, one.answer)
            one.post.request.answer(one.answer)


def _handed_on(answers: list[_Answered], rows: int) -> tuple[list[_Answered], list[_Answered]]:
    """Splits requests into those whose rows all are among the next `rows`, and the others, less the rows that are."""
    for place, one in enumerate(answers):
        if one.rows > rows:
            return answers[:place], [one._replace(rows=one.rows - rows), *answers[place + 1 :]]
        rows -= one.rows
    return answers, []


def _taken(rows: int, left_out: int = 0, why: Sequence[str] = ()) -> Answer:
    """Returns the answer to a body that has been decoded."""
    told = {"rows": rows, "left_out": left_out, "why": why}
    if rows == 0 and left_out:
        return Answer(400, msgspec.json.encode({"error": f"no row fits: {why[0]}", **told}))
    return Answer(200, msgspec.json.encode(told))
