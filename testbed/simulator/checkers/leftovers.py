"""Checks that nothing is left behind: once all queries have ended or been dropped, agents hold no operator, migration, memory, file or
slot."""

from sbon_testbed.simulator.checkers.base import CaseChecker


class Leftovers(CaseChecker):
    """Looks for things that ended queries have left behind."""

    after_drop = True

    def converged(self) -> str:
        """Returns the first thing that is still there."""
        for agent, instance in self.run.instances():
            return f"{instance.id} is still on {agent.name} ({instance.state.value}) for {', '.join(instance.users) or 'nobody'}"
        for number, agent in self.run.agents():
            room, migrations = agent.execution.operators.room, agent.execution.migrations
            if migrations.departing or migrations.arriving:
                return f"{agent.name} has {migrations.departing} operators leaving and {migrations.arriving} arriving"
            if room.budget.used_bytes:
                return f"the states on {agent.name} take {room.budget.used_bytes} bytes"
            if (slots := room.free_slots(agent.host.now())) != agent.config.engine.operators_max:
                return f"{agent.name} has {slots} free slots of {agent.config.engine.operators_max}"
            if files := self.run.world.world.machines[number].disk.names():
                return f"{agent.name} has {', '.join(files[:5])} on disk"
        return ""
