"""Connector `http` as a source. With `listen` it takes rows by POST over HTTP/1.1; with `url` it asks for them by GET, at intervals.

Statements of other agents may listen on and connect to the addresses of the setting `connectors.tcp.allow`, by default those of loopback.

Options of a source that takes POST
-----------------------------------
listen : required; address and port, such as '127.0.0.1:8080' or '[::1]:8080'
path : path of the requests, default '/'
format : `ndjson`, `json` (an array of objects, or one object) or `csv` (with a header); by default the header Content-Type decides
token_file : a file with one line; requests must then have `Authorization: Bearer` and that line. The file is read when the source starts.
    Without it, everybody who reaches the address may send rows, except web pages: requests with the header Origin are refused
tls_certificate, tls_key : as for `tcp`
body_bytes_max : largest body, after decompression; larger ones get status 413; default 1 MiB
buffer_bytes_max : memory for all bodies that are being read or wait; when it is full, requests get status 429; default 16 MiB
answer_within : a body that has waited this long for the query is dropped and gets status 429; default '10 s'
body_timeout : a body that has not come within this time gets status 408; default '30 s'
connections_max : most connections, default 64; further ones get status 503
idempotency_window, idempotency_keys_max : a request with an `Idempotency-Key` that was answered within this time (default '10 minutes') is
    answered as before and adds no rows; at most this many keys are remembered (default 10000), and the oldest are forgotten first
separator : separator of CSV, default ','
time_format, time_unit : see `time_format.TimeFormat`
batch_rows_max : most rows of a batch, default 65536; fewer if they would take longer than the engine's quantum
ahead_max : as for `tcp`

Options of a source that asks
-----------------------------
url, token_file, headers_file, ca_file, timeout : see `http_client.HttpClient`
interval : time from one request to the next, 100 ms to 7 days; default '10 s'. A request waits until the rows of the last answer have been
    taken
format : as above
rows : `all` (default): takes every row of an answer; `new`: only those that the previous answer did not have
body_bytes_max : largest body; a larger one is a failure; default 4 MiB
separator, time_format, time_unit, batch_rows_max, ahead_max : as above

A body with the same `ETag` or `Last-Modified` as the last one gives no rows. Up to 5 redirections are followed. After a failure the URL is
requested again, after pauses that grow to a minute, or as `Retry-After` says; until a request succeeds, the source is shown as stalled.
"""

from __future__ import annotations

from sbon.connectors.interface import SourceConnector
from sbon.errors import ConnectorError
from sbon.options import Options
from sbon.query.params.source import SourceParams
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.http_polls import PollSource
from sbon_agent.connectors.http_posts import PostSource


def build_http_source(params: SourceParams, context: ConnectorContext) -> SourceConnector:
    """Returns the source that the options ask for, not yet started.

    Raises
    ------
    ConnectorError
        An option is missing, unknown or out of range.
    """
    what = f"source {params.name}"
    options = Options(what, params.connector, params.options)
    if options.given("url"):
        if options.given("listen"):
            raise options.refuse("listen", options.text("listen", ""), "none together with url: a source either listens or asks")
        return PollSource(params, context, options)
    if not options.given("listen"):
        raise ConnectorError(
            f"{what}: connector 'http' needs option listen or url: write listen = '127.0.0.1:8080' to take rows by POST, "
            "or url = 'https://example.org/rows' to ask for them",
            option="listen",
        )
    return PostSource(params, context, options)
