"""Checks that memory, queues and disks stay within their settings."""

from sbon_testbed.simulator.checkers.base import CaseChecker

BEYOND = 2
"""Batches that a link may hold beyond its window: an operator that had credit when it began may give more batches than there is room
for."""


class Bounds(CaseChecker):
    """Compares the sizes of links, queues, disks and tables with their limits."""

    def look(self) -> str:
        """Returns the first that exceeds its limit."""
        for agent, instance in self.run.instances():
            window = agent.config.links.window_batches
            for output in instance.outputs.values():
                if output.sender.memory_batches > window + BEYOND:
                    return f"{output.sender.link} holds {output.sender.memory_batches} batches in memory, its window is {window}"
            for link, incoming in instance.inputs.items():
                if len(incoming.queue) > 2 * window:
                    return f"{len(incoming.queue)} batches of {link} wait at {instance.id}, its window is {window}"
        for number, agent in self.run.agents():
            budget, used = agent.config.links.spill_bytes, self.run.world.world.machines[number].disk.used_bytes
            if used > budget:
                return f"{agent.name} has {used} bytes on disk, links.spill_bytes is {budget}"
            if len(agent.network.gossip.members) > len(self.run.world.nodes):
                return f"{agent.name} knows {len(agent.network.gossip.members)} members of {len(self.run.world.nodes)}"
        return ""
