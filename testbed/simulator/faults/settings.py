"""Settings of the agents of one seed of `sbon testbed simulate`."""

from collections.abc import Collection

import numpy as np

from sbon.config import Layer

KILLS = 0.25
"""Share of the seeds in which agents are killed with all that they serve."""
SPILLS = 0.4
"""Share of the seeds in which links have disks."""


def settings_of(seed: int, kinds: Collection[str]) -> Layer:
    """Returns the settings of all agents of a seed: small windows and pieces, fast optimisers, keepers that take over, and disks in some
    seeds."""
    rng = np.random.default_rng([seed, 21])
    links: Layer = {"window_batches": int(rng.integers(1, 9))}
    if rng.random() < SPILLS and "disks" in kinds:
        links = {**links, "spill_bytes": 2**20, "spill_after_s": 0.1}
    return {
        "engine": {
            "batch_interval_s": 0.1,
            # By default, successive cuts may keep a node away for longer than inputs and outputs wait, after which losing rows is correct.
            "lost_input_s": 600.0,
            "lost_consumer_s": 600.0,
            "wanted_interval_s": 5.0,
            "take_over": True,
            **({"quantum_rows": 4} if seed % 2 else {}),
        },
        "optimiser": {
            "enabled": "optimisers" in kinds,
            "interval_s": 1.0,
            "cooldown_s": 2.0,
            "lookup_interval_s": 3.0,
            "confirmations": 1,
            "certainty": 0.5,
        },
        "placement": {"reuse": False},
        "telemetry": {"enabled": False},
        "links": links,
        "membership": {"interval_s": 0.5, "reconnect_interval_s": 3.0},
        "migration": {
            "piece_bytes": 1024,
            "window_bytes": (1, 4096, 2**20)[seed % 3],
            "rest_bytes": (1, 65_536)[seed % 2],
            "timeout_s": 4.0,
            "lease_s": 8.0,
            "prepared_s": 2.0,
        },
    }


def kills_of(seed: int, kinds: Collection[str]) -> bool:
    """Tells whether agents of a seed are killed with all that they serve."""
    return "kills" in kinds and float(np.random.default_rng([seed, 22]).random()) < KILLS
