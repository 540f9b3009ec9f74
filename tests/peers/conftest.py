"""Two agents' connections in a world of three machines, plain and sealed."""

import pytest

from tests.peers.world import RING, World


@pytest.fixture
def world():
    return World()


@pytest.fixture(params=[None, RING], ids=["plain", "sealed"])
def pair(request, world):
    return world.boot(0, "ada", request.param), world.boot(1, "bob", request.param)
