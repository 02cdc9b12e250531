"""An engine without a model: slots, queue, paced tokens and faults behind the llama-server or the Ollama API.

For trying slotgate on a laptop, for tests and for benchmarks. Of slotgate it knows the simulated engine only.
"""

from proxy.emulated.emulated_engine import EmulatedEngine, Seen
from proxy.emulated.engine import Departure
from proxy.emulated.faults import Fault, Kind
from proxy.emulated.options import EmulatedModel

__all__ = ["Departure", "EmulatedEngine", "EmulatedModel", "Fault", "Kind", "Seen"]
