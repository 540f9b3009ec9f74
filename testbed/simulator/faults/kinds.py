"""The kinds of faults, how often each happens, and the generator from which each draws.

| kind | what happens |
| --- | --- |
| loss, duplicates, reordering | datagrams are lost, arrive twice, or are held back |
| partitions, one-way | nodes are cut off for a while; one direction of one pair is blocked |
| slow, stopped | other programs take a machine's processors; its processes stop, as in a debugger |
| disks | disks are slow, full or broken for a while; links spill to them |
| clocks | wall clocks jump |
| restarts | an agent that serves no query is killed and started again |
| leaving | an agent leaves in good order and comes back |
| kills | in some seeds, agents are killed with all that they serve, and come back without it, among them owners of queries |
| moves | operators are moved, several at once, at any moment |
| optimisers | the optimisers of all agents are on |

A story may have kinds of its own, of `STORY_KINDS`, which it carries out itself when they are due.
"""

from collections.abc import Collection, Sequence

import numpy as np

from sbon.errors import UsageError
from sbon_testbed.simulator.network import NetworkConfig

KINDS = (
    *("loss", "duplicates", "reordering", "partitions", "one-way", "slow", "stopped", "disks", "clocks"),
    *("restarts", "leaving", "kills", "moves", "optimisers"),
)
STORY_KINDS = ("homes", "deaths", "multicasts", "guests", "plans", "call-offs", "wishes", "names")
"""Kinds that stories carry out: homes of queries and hosts that die; multicasts, queries and plans that change; changes that are called
off; connections that an agent wants no more, or wants again; names that are created and dropped. New kinds stand at the end, because
their places decide the draws."""
PAUSE_S = {
    "partitions": 5.0,
    "one-way": 6.0,
    "slow": 4.0,
    "stopped": 5.0,
    "disks": 1.0,
    "clocks": 4.0,
    "restarts": 6.0,
    "leaving": 8.0,
    "kills": 5.0,
    "moves": 0.1,
}
"""Mean virtual seconds between two faults of a kind."""


def kinds_of(text: str, known: Sequence[str] = KINDS, option: str = "--faults") -> tuple[str, ...]:
    """Returns the kinds in a comma-separated list; an empty text means all known ones.

    Parameters
    ----------
    option : the option that has the list

    Raises
    ------
    UsageError
        A kind is unknown.
    """
    kinds = tuple(filter(None, (part.strip() for part in text.split(","))))
    if unknown := [kind for kind in kinds if kind not in known]:
        raise UsageError(f"{option} {', '.join(unknown)}: expected some of {','.join(known)}")
    return kinds or tuple(known)


def generator_of(seed: int, kind: str) -> np.random.Generator:
    """Returns the generator of a kind, so that leaving a kind out does not change the draws of the others."""
    return np.random.default_rng([seed, 30 + (*KINDS, *STORY_KINDS).index(kind)])


def network_of(seed: int, kinds: Collection[str]) -> NetworkConfig:
    """Returns the network of a seed during the faults."""
    rng = np.random.default_rng([seed, 20])
    loss, duplicate, reorder, jitter_ms, split = rng.uniform([0, 0, 0, 0.2, 0], [0.06, 0.06, 0.12, 10.0, 0.6])
    return NetworkConfig(
        loss=float(loss) if "loss" in kinds else 0.0,
        duplicate=float(duplicate) if "duplicates" in kinds else 0.0,
        reorder=float(reorder) if "reordering" in kinds else 0.0,
        jitter_ms=float(jitter_ms),
        split=float(split),
        stream_timeout_s=float(rng.choice([1.0, 3.0, 20.0])),
    )
