"""Names of the plain types that travel between modules.

numpy is imported when an array type is first used, because most commands do not need it.
"""

import re
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    FloatArray: TypeAlias = npt.NDArray[np.float64]
    IntArray: TypeAlias = npt.NDArray[np.int64]

NodeId: TypeAlias = str
"""An agent's name, unique in the overlay."""

QueryId: TypeAlias = str
"""Id of a query, given by the agent that took it."""

OperatorId: TypeAlias = str
"""Id of an operator: `query.step`, unique in the overlay; stays the same when the operator moves."""

LinkId: TypeAlias = str
"""Id of a link: `source>target:port`; stays the same when either end moves."""

Address: TypeAlias = tuple[str, int]
"""Host and port; UDP and TCP share the number."""


def __getattr__(name: str) -> Any:
    """Returns FloatArray or IntArray, importing numpy only then."""
    if name not in ("FloatArray", "IntArray"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import numpy as np
    import numpy.typing as npt

    return npt.NDArray[np.float64] if name == "FloatArray" else npt.NDArray[np.int64]


AGENT_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
"""Pattern of the names of agents."""
