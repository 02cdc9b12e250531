"""The world: everything in slotgate that does I/O.

One event loop. Bytes come in, a dialect makes a request of them, the scheduler (package `scheduler`, pure) decides,
and the relay moves bytes. Nothing in here decides where a request goes.
"""

__version__ = "0.1.0"
