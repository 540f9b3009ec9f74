"""The promises that a host has given to those who migrate: which of its operators must keep still, for whose migration, until when."""

from sbon.types import OperatorId


class Locks:
    """All promises of one host."""

    def __init__(self) -> None:
        self._held: dict[OperatorId, dict[OperatorId, float]] = {}

    def grant(self, migrating: OperatorId, neighbours: tuple[OperatorId, ...], until: float) -> None:
        """Promise that `neighbours` keep still while `migrating` moves. Many may hold the same operator still; a later word replaces."""
        for operator in neighbours:
            self._held.setdefault(operator, {})[migrating] = until

    def granted(self, migrating: OperatorId, neighbours: tuple[OperatorId, ...], now: float) -> bool:
        """All of these have been promised to `migrating`, and still are."""
        return all(self._held.get(operator, {}).get(migrating, now) > now for operator in neighbours)

    def release(self, migrating: OperatorId) -> None:
        """That migration is over."""
        for operator in list(self._held):
            self._held[operator].pop(migrating, None)
            if not self._held[operator]:
                del self._held[operator]

    def held(self, operator: OperatorId, now: float) -> bool:
        """`operator` must keep still."""
        leases = self._held.get(operator)
        if leases is None:
            return False
        for migrating in [m for m, until in leases.items() if until <= now]:
            del leases[migrating]
        if not leases:
            del self._held[operator]
        return bool(leases)
