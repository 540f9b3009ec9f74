"""Names for the plain values that travel between modules."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

NodeId: TypeAlias = str
"""An agent's name, unique in the overlay."""

QueryId: TypeAlias = str
"""Given by the agent that took the query."""

OperatorId: TypeAlias = str
"""`query.step`, unique in the overlay; stays the same when the operator moves."""

LinkId: TypeAlias = str
"""`source>target:port`; stays the same when either end moves."""

Address: TypeAlias = tuple[str, int]
"""Host and port; UDP and TCP share the number."""

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
