"""RTTs that nodes remember from their own probing, for ranking candidates alternately by them and by coordinates."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from types import MappingProxyType
from typing import TypeAlias

from sbon.types import NodeId

Remembered: TypeAlias = Mapping[NodeId, Mapping[NodeId, float]]
"""RTTs in ms from each node that has reported them to its peers."""
NOTHING: Remembered = MappingProxyType({})


def interleaved(*rankings: Iterable[NodeId]) -> Iterator[NodeId]:
    """Yields the first of each ranking, then the second of each, and so on; each node once.

    Examples
    --------
    >>> list(interleaved(["a", "b", "c"], ["b", "d"]))
    ['a', 'b', 'd', 'c']
    """
    return iter(dict.fromkeys(node for rank in zip_longest(*rankings) for node in rank if node is not None))
