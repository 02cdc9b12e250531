"""Python's collector of reference cycles, set for a process that runs for weeks beside many long-lived objects."""

import gc

THRESHOLDS = (10_000, 20, 10)
"""New objects before a look at them; such looks before one at those that survived; and before one at all.

Python's 700, 10, 10 look so often at what lives long (every waiting request holds a decision about all backends) that
with 64 backends and 1,000 waiting requests some decision takes 135 ms. So it is 20 to 30. Of 50,000 new objects a look
would take 60 to 95 ms: too much at once.
"""


def settle() -> None:
    """Leave out what is there now from all later looks: modules and classes, if called when a process starts."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
