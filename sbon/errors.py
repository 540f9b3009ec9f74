"""The error tree. Each class exists because some caller acts on it. Every message gives the value and the expectation."""

import math


class SbonError(Exception):
    """Base of all errors that the project raises on purpose."""


class ConfigError(SbonError):
    """A setting is unknown or out of range; the message gives its path in the file."""


class UsageError(ConfigError):
    """An option of a command is out of range: wrong usage, with a separate exit code. The message gives the option as it is typed."""


class QueryError(SbonError):
    """SQL that cannot be run, with its place in the text and a hint.

    Parameters
    ----------
    message : what is wrong
    line, column : position in the submitted text, from 1; 0 if unknown
    hint : what to write instead, as a sentence; may be empty
    """

    def __init__(self, message: str, *, line: int = 0, column: int = 0, hint: str = "") -> None:
        self.message, self.line, self.column, self.hint = message, line, column, hint
        place = f"line {line}, column {column}: " if line else ""
        super().__init__(f"{place}{message}" + (f"; {hint}" if hint else ""))


class ShapeError(SbonError):
    """Array shapes disagree."""


class CoordinateError(SbonError):
    """A coordinate or RTT that is non-finite, absurd, or of another dimension."""


class PlacementError(SbonError):
    """No node can host an operator; the message gives its id."""


class LatencyBoundError(PlacementError):
    """No placement that was tried keeps within a query's `max_latency`, by prediction. Other numbers of instances might."""


class DelayBoundError(PlacementError):
    """The candidates allow no placement within a query's delay bound.

    Parameters
    ----------
    bound_ms : the bound that was asked for
    reachable_ms : the shortest delay that was found
    """

    def __init__(self, bound_ms: float, reachable_ms: float) -> None:
        self.bound_ms, self.reachable_ms = bound_ms, reachable_ms
        super().__init__(
            f"no placement keeps within the delay bound of {bound_ms:.6g} ms; the best reachable delay is "
            f"{math.ceil(10 * reachable_ms) / 10:.1f} ms, ask for at least that"
        )


class ProtocolError(SbonError):
    """A protocol's rules were broken."""


class LocalProtocolError(ProtocolError):
    """A state machine was asked for something that its state forbids: a bug in sbon."""


class UnpackableError(ProtocolError):
    """A batch of a link does not fit into a frame: its rows are left out, counted and reported."""


class RemoteProtocolError(ProtocolError):
    """A peer sent an invalid message: count it and drop it."""


class AuthorityError(ProtocolError):
    """A peer sent a message that only others may send. It is refused and counted; the connection stays."""


class UnsupportedError(ProtocolError):
    """A peer of another release sent a message that this release does not know, or does not know a message of this release. It is counted
    and has no effect; the connection stays."""


class KeyMismatchError(RemoteProtocolError):
    """A peer holds none of our cluster keys: one side missed a change of keys, or the peer is a stranger."""


class LinkError(SbonError):
    """The network broke a link: back off and reconnect."""


class SpillError(SbonError):
    """A link read other batches from disk than it wrote: its operator must fail rather than pass on wrong rows."""


class StateError(SbonError):
    """States on disk cannot be read back, or do not fit into their memory: their operator must fail rather than use wrong states."""


class StateFullError(StateError):
    """The disk takes no more states: the operator tries the same batch again later, and its source waits."""

    retry_after_s = 1.0
    """Pause before the next attempt."""


class MigrationError(SbonError):
    """A migration was abandoned; the operator runs where it was."""


class ConnectorError(SbonError):
    """A source or sink cannot do its work (unreadable file, full disk, bad option); the message says what to do.

    Parameters
    ----------
    option : the wrong option of the WITH clause; empty if no option is wrong
    """

    def __init__(self, message: str, *, option: str = "") -> None:
        self.option = option
        super().__init__(message)
