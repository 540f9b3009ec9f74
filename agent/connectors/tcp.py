"""Connector `tcp`: NDJSON lines over TCP, one object a line, UTF-8. As a source it reads rows, as a sink it writes them.

Options of both
---------------
port : required; port to listen on or to connect to
host : address to listen on or to connect to, default 127.0.0.1; to admit other machines, name an address of this machine, or 0.0.0.0; there
    is no password on this port
mode : `listen` (default of sources) or `connect` (default of sinks), which reconnects whenever the connection is lost
connections_max : with `listen`, most connections, default 16
tls_certificate, tls_key : with `listen`: files with the certificate (chain) and its key, PEM; peers must then speak TLS. With `connect` and
    `tls = 'true'`: the certificate to show to a peer that asks for one. Only its owner may have read access to the key. New connections use
    changed files within 10 s. Default: plain text, or no certificate
tls : with `connect`: `true` or `false` (default): whether the peer must speak TLS 1.2 or later and have a trusted certificate
ca_file : with `tls = 'true'`: certificates (PEM) of the authorities to trust instead of the system's
server_name : with `tls = 'true'`: name or address that the peer's certificate must have; default: `host`

Statements of other agents may listen on and connect to the addresses of the setting `connectors.tcp.allow`, by default those of loopback.

Options of a source
-------------------
line_bytes_max : longer lines are left out and counted; default 65536
buffer_bytes_max : memory for lines that wait for the overlay; when it is full, the sockets are not read; default 8 MiB
time_format, time_unit : see `time_format.TimeFormat`
batch_rows_max : most rows of a batch, default 65536; fewer if they would take longer than the engine's quantum
ahead_max : longest time, such as '1 hour', by which event times may be ahead of this machine's clock; rows further ahead are left out and
    counted. Default: no limit, and `sbon operators` reports the first row that is a day ahead

Options of a sink
-----------------
buffer_bytes_max : memory for lines that wait for the peer; when it is full, the query waits; default 4 MiB

With `listen`, every connected peer gets every row written while it is connected, at the pace of the slowest; rows wait while no peer is
connected. Rows that had been given to a connection when it broke may be lost: TCP does not say which arrived. Silent peers are probed (TCP
keepalive): a connection is closed after a minute if its peer's machine or the path to it is gone.
"""

from __future__ import annotations

import threading

from sbon.connectors.line_endpoint import LineEndpoint, Peers
from sbon.connectors.line_sink import LineSink
from sbon.connectors.line_source import LineSource
from sbon.options import Options
from sbon.query.params.source import SinkParams, SourceParams
from sbon.schema import Schema
from sbon_agent.connectors.addresses import SocketPlace
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.sockets import outside_of
from sbon_agent.connectors.tls_files import TlsFiles


def build_tcp_source(params: SourceParams, context: ConnectorContext) -> LineSource:
    """Makes a source, which neither listens nor connects before it is started."""
    options = Options(f"source {params.name}", params.connector, params.options)
    made = LineSource(params, options, _endpoint(options, "listen", context, writes=False), threading.Lock())
    options.finish()
    return made


def build_tcp_sink(params: SinkParams, schema: Schema, context: ConnectorContext) -> LineSink:
    """Makes a sink, which neither listens nor connects before it is opened."""
    endpoint, buffer_bytes_max = _sink_options(params, context)
    return LineSink(schema, endpoint, context.host, buffer_bytes_max, threading.Lock())


def check_tcp_sink(params: SinkParams, schema: Schema, context: ConnectorContext) -> None:
    """Refuses options as `build_tcp_sink` would, without listening or connecting."""
    _sink_options(params, context)


def _sink_options(params: SinkParams, context: ConnectorContext) -> tuple[LineEndpoint, int]:
    """Reads the options; returns the endpoint, not started, and `buffer_bytes_max`."""
    options = Options(f"sink {params.name}", params.connector, params.options)
    endpoint = _endpoint(options, "connect", context, writes=True)
    buffer_bytes_max = options.integer("buffer_bytes_max", 4 << 20, 1024, 1 << 30)
    options.finish()
    return endpoint, buffer_bytes_max


def _endpoint(options: Options, default_mode: str, context: ConnectorContext, *, writes: bool) -> LineEndpoint:
    """Reads the options that sources and sinks share.

    Parameters
    ----------
    writes : the owner writes to its peers. If it connects with TLS, nothing is written until a peer has had time to refuse our certificate
    """
    listens = options.choice("mode", ("connect", "listen"), default_mode) == "listen"
    host = options.text("host", "127.0.0.1")
    options.required("port", "9000")
    for option in ("tls", "ca_file", "server_name") if listens else ():
        if options.given(option):
            raise options.refuse(option, options.text(option, ""), "mode = 'connect' as well")
    port = options.integer("port", 0, 0 if listens else 1, 65_535)
    connections_max = options.integer("connections_max", 16, 1, 1024) if listens else 1
    what, reach = options.what, context.reach
    tls = TlsFiles.of_options(what, options, reach) if listens else TlsFiles.of_peer(what, options, reach, host)
    outside = outside_of(SocketPlace(what, host, port, reach, listens=listens), tls, "tcp", context)
    secured = tls is not None
    peers = Peers(what, host, port, listens, connections_max, secured, settles=writes and secured and not listens)
    return LineEndpoint(peers, outside, context.host)
