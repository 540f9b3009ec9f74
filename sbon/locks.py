"""The locks that a host has granted to migrations: which of its operators must keep still, for whose migration, until when."""

from sbon.types import NodeId, OperatorId


class Locks:
    """All locks of one host."""

    def __init__(self) -> None:
        self._held: dict[OperatorId, dict[OperatorId, float]] = {}
        self._holders: dict[OperatorId, NodeId] = {}

    def grant(self, migrating: OperatorId, neighbours: tuple[OperatorId, ...], until: float, holder: NodeId) -> None:
        """Locks `neighbours` for `holder` while `migrating` moves. Several migrations may lock the same operator; a later grant
        replaces an earlier one."""
        self._holders[migrating] = holder
        for operator in neighbours:
            self._held.setdefault(operator, {})[migrating] = until

    def granted(self, migrating: OperatorId, neighbours: tuple[OperatorId, ...], now: float) -> bool:
        """Tells whether all of these are locked for `migrating`, and still are."""
        return all(self._held.get(operator, {}).get(migrating, now) > now for operator in neighbours)

    def holder(self, migrating: OperatorId) -> NodeId | None:
        """Returns the host that moves an operator, by the last promise given for it; None: there is none."""
        return self._holders.get(migrating)

    def release(self, migrating: OperatorId, holder: NodeId) -> bool:
        """Releases a migration's locks. A late message from an earlier holder changes nothing. Tells whether there was such a lock."""
        if self._holders.get(migrating) != holder:
            return False
        del self._holders[migrating]
        for operator in list(self._held):
            self._held[operator].pop(migrating, None)
            if not self._held[operator]:
                del self._held[operator]
        return True

    def held(self, operator: OperatorId, now: float) -> bool:
        """Tells whether `operator` must keep still."""
        leases = self._held.get(operator)
        if leases is None:
            return False
        for migrating in [m for m, until in leases.items() if until <= now]:
            del leases[migrating]
        if not leases:
            del self._held[operator]
        return bool(leases)

    def expire(self, now: float) -> None:
        """Drops expired locks."""
        for operator in list(self._held):
            self.held(operator, now)
        migrating = {migrating for leases in self._held.values() for migrating in leases}
        self._holders = {one: holder for one, holder in self._holders.items() if one in migrating}
