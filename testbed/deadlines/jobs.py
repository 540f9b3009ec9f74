"""The three workloads of the evaluation: sessions of clicks, counts of words, and counts of words in windows.

Shapes are those of the paper. Costs are in the form of the engine's laws, with a cost of a batch (docs/costs.md): the paper's rates use
more than half of ten nodes with four cores. Keys follow Zipf's law.
"""

import msgspec
import numpy as np

from sbon.cost.stages import Cluster, Finalising, Job, Step

CLUSTER = Cluster(cores=4, bandwidth_bytes_per_s=125e6, propagation_s=0.0002)
NODES = 10
PACE_S = 0.005
WINDOW_S = 10.0
"""The paper has 30 s; only the last seconds of a window matter, and simulating the rest takes minutes."""


def zipf_shares(exponent: float, keys: int, hottest: int = 1000) -> tuple[float, ...]:
    """Returns the shares of the `hottest` most frequent of `keys` keys."""
    weights = 1.0 / np.arange(1, keys + 1) ** exponent
    return tuple((weights[:hottest] / weights.sum()).tolist())


def in_memory(exponent: float, keys: int, share_of_keys: float) -> float:
    """Returns the share of rows whose keys are among the most frequent `share_of_keys`, which fit into memory."""
    weights = 1.0 / np.arange(1, keys + 1) ** exponent
    return float(weights[: max(1, round(share_of_keys * keys))].sum() / weights.sum())


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A job with its latency bound, and the rates of its evaluation."""

    job: Job
    bound_s: float
    rate: float
    """Rate at which the model is compared with virtual time, rows/s."""
    rules_rate: float
    """Rate at which rules of thumb are compared with the plan, rows/s."""
    window_s: float = 0.0


def _step(per_row_ns: float) -> Step:
    return Step(per_batch_ns=100_000.0, per_row_ns=per_row_ns, scatter=0.2)


_WORDS = Job(
    map=_step(8000),
    update=_step(700),
    rows_out=10,
    row_bytes=140,
    sent_bytes=20,
    hot_shares=zipf_shares(0.75, 1_000_000),
)
WORKLOADS = {
    "sessions": Workload(
        job=Job(
            map=_step(1000),
            update=_step(1600),
            row_bytes=60,
            sent_bytes=24,
            hot_shares=zipf_shares(0.75, 1_000_000),
        ),
        bound_s=0.5,
        rate=6e6,
        rules_rate=8e6,
    ),
    "words": Workload(job=_WORDS, bound_s=1.0, rate=1e6, rules_rate=1.6e6),
    "windows": Workload(
        job=msgspec.structs.replace(_WORDS, finalising=Finalising(keys=2e6, per_key_ns=6000)),
        bound_s=3.0,
        rate=1e6,
        rules_rate=1.6e6,
        window_s=WINDOW_S,
    ),
}
