"""The collector as a server sets it, in a process of its own: it is set for the whole process."""

import subprocess
import sys

CODE = """
import gc, weakref
from proxy import garbage

class Node: pass

def cycle():
    node = Node()
    node.self = node
    return weakref.ref(node)

garbage.settle()
assert gc.isenabled() and gc.get_freeze_count() > 1000, gc.get_freeze_count()
assert gc.get_threshold() == garbage.THRESHOLDS
dead = cycle()
kept = []
while dead() is not None:  # cycles are still found, by themselves
    kept.append([])
    assert len(kept) <= 2 * garbage.THRESHOLDS[0]
"""


def test_it_still_collects() -> None:
    result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
