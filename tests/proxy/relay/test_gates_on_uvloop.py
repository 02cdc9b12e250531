"""Gates and their dialing again, on both event loops: transports of uvloop, TLS ones above all, are not asyncio's."""

from tests.proxy.test_gate import *  # noqa: F403
from tests.proxy.test_gate_client import *  # noqa: F403
from tests.proxy.test_passage import *  # noqa: F403
