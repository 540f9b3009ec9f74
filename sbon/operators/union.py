"""UNION ALL as an operator of its own. Ports merge their links already; this operator lets queries share the merged stream."""

from collections.abc import Sequence

import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.operator import Operator


class Union(Operator):
    """Returns the rows of all inputs, unchanged. Stateless."""

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Passes a batch on."""
        return (frame,)

    def restore(self, state: bytes) -> None:
        """Accepts the empty snapshot of a stateless operator."""
        if state:
            raise RemoteProtocolError(f"snapshot of {len(state)} bytes for an operator without state, expected none")
