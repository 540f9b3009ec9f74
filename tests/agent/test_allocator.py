"""The allocator keeps the memory of a batch for the next one."""

import subprocess
import sys

import pytest

PROBE = """
import resource
from sbon_agent.allocator import keep_freed_memory
assert keep_freed_memory()
def use():
    for _ in range(20):
        bytes(bytearray(8 * 2**20))
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_pieces_of_batch_size_are_not_fetched_from_the_kernel_again_and_again() -> None:
    found = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=False)
    if "AssertionError" in found.stderr:
        pytest.skip("another allocator than glibc's")
    assert int(found.stdout) < 2048  # page faults; 20 times 16 MiB of fresh memory would take 81,920
