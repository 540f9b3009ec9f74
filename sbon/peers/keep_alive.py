"""Decides when one end of a connection sends a ping or a pong, and when it gives the connection up, by the times of its last bytes."""

from typing import NamedTuple

from sbon.peer_settings import PeerConfig
from sbon.peers.kinds import Kind


class GivenUp(NamedTuple):
    """The end of a connection: the counter to increment, and the reason for people."""

    counter: str
    reason: str


class KeepAlive:
    """Instants of one end of a connection, in monotonic seconds.

    Attributes
    ----------
    opened_at_s : when the handshake began
    received_at_s, sent_at_s : when bytes were last received and written
    """

    __slots__ = ("_config", "_dialled", "opened_at_s", "received_at_s", "sent_at_s")

    def __init__(self, config: PeerConfig, *, dialled: bool, now: float) -> None:
        self._config, self._dialled = config, dialled
        self.opened_at_s = self.received_at_s = self.sent_at_s = now

    def given_up(self, now: float, *, is_ready: bool) -> GivenUp | None:
        """Returns why to end the connection; None if it may stay."""
        config = self._config
        if not is_ready:
            limit_s = config.handshake_timeout_s if self._dialled else config.accept_timeout_s
            if now - self.opened_at_s >= limit_s:
                return GivenUp("handshakes_timed_out", f"no handshake within {limit_s:g} s")
        elif now - self.received_at_s >= config.silence_timeout_s:
            return GivenUp("connections_silent", f"silent for {now - self.received_at_s:.1f} s")
        return None

    def sign(self, now: float) -> Kind | None:
        """Returns the frame that shows that this end is alive; None if none is due. The connection must be ready."""
        keepalive_s = self._config.keepalive_s
        if self._dialled and now - min(self.received_at_s, self.sent_at_s) >= keepalive_s:
            # Ping also after our own silence: an acceptor that sends to us without hearing from us would consider us dead.
            return Kind.PING
        if not self._dialled and self.received_at_s > self.sent_at_s and now - self.sent_at_s >= keepalive_s:
            # On a slow line the peer's ping waits behind its data. A pong keeps the peer from considering us dead while we receive.
            return Kind.PONG
        return None

    def excuse(self, now: float, *, is_ready: bool) -> None:
        """Restarts the silence timeout: this process was suspended, so the peer's silence so far means nothing."""
        self.opened_at_s = max(self.opened_at_s, now) if not is_ready else self.opened_at_s
        self.received_at_s = now
