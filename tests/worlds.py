"""Overlays in virtual time whose agents know each other."""

from typing import Any

from sbon_testbed.simulator.case import Case
from sbon_testbed.simulator.faults.schedule import Faults
from sbon_testbed.simulator.harness import World
from sbon_testbed.topology import Topology

QUIET: dict[str, Any] = {"optimiser": {"enabled": False}}
"""Settings of agents that move no operators by themselves."""

BATCH_INTERVAL_S = 0.2
"""Longest pause between two batches of a source, unless a test sets another: a quarter of the events, and of the time, of the default."""


def settled_world(nodes: int | Topology = 4, *, predictions: str = "coarse", **how: Any) -> World:
    """Returns a world whose agents have started and agree on who is alive; `how` as for `World`.

    Parameters
    ----------
    predictions : "fine" for stories about predictions, or about what is decided by them
    """
    settings = how.pop("settings", {})
    engine = {"batch_interval_s": BATCH_INTERVAL_S, **settings.get("engine", {})}
    optimiser = {"predictions": predictions, **settings.get("optimiser", {})}
    world = World(nodes, settings={**settings, "engine": engine, "optimiser": optimiser}, **how)
    world.start_all()
    world.settle()
    return world


def moves_in(world: World, seed: int) -> Faults:
    """Returns a schedule that moves random operators, about three a virtual second; `run` lets time pass with it."""
    faults = Faults(Case(world, seed), ("moves",), {"moves": 0.3})
    faults.begin()
    return faults
