"""One stream to several consumers from a place near them (SBON, section 4.2.2): an identity with as many outputs as it has been given.

The engine passes its batches on as they came, without decoding them; `process` is there for whoever runs it like any other operator.
"""

from collections.abc import Sequence

import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.operator import Operator


class Multicast(Operator):
    """Rows as they come. Has no state: what is not delivered is in its links."""

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Pass a batch on."""
        return (frame,)

    def restore(self, state: bytes) -> None:
        """Take the empty snapshot of a stateless operator."""
        if state:
            raise RemoteProtocolError(f"snapshot of {len(state)} bytes for a multicast, expected none")
