"""Sends one stream to several consumers from a place near them (SBON, section 4.2.2): the identity, with any number of outputs.

The engine forwards batches undecoded; `process` serves callers that run it like any other operator.
"""

from collections.abc import Sequence

import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.operator import Operator


class Multicast(Operator):
    """Returns rows unchanged. Stateless: undelivered rows are kept by its links."""

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Passes a batch on."""
        return (frame,)

    def restore(self, state: bytes) -> None:
        """Accepts the empty snapshot of a stateless operator."""
        if state:
            raise RemoteProtocolError(f"snapshot of {len(state)} bytes for a multicast, expected none")
