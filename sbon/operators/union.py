"""UNION ALL as an operator of its own (ports merge their links already; this one gives a shared meeting point a name)."""

from collections.abc import Sequence

import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.operator import Operator


class Union(Operator):
    """Rows of all inputs, unchanged. Has no state."""

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Pass a batch on."""
        return (frame,)

    def restore(self, state: bytes) -> None:
        """Take the empty snapshot of a stateless operator."""
        if state:
            raise RemoteProtocolError(f"snapshot of {len(state)} bytes for an operator without state, expected none")
