"""Kinds of frames on a connection between agents; `sbon.peers.connection` explains them."""

import enum


class Kind(enum.IntEnum):
    """Purpose of a frame."""

    MESSAGE = 1
    REQUEST = 2
    REPLY = 3
    ERROR = 4
    PING = 5
    PONG = 6
    BYE = 7
    DATA = 8
