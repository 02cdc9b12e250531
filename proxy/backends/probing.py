"""Owns which questions suit a backend: opens the probe for its engine, with what is known of it beside its answers."""

from collections.abc import Mapping

import msgspec

from proxy.backends import model_dir
from proxy.backends.control import Control
from proxy.backends.detect import detect
from proxy.backends.ollama_children import Finder
from proxy.backends.placement import Placement
from proxy.backends.probes import Probe
from proxy.backends.probes.llama_server import LlamaServerProbe
from proxy.backends.probes.ollama import Given, OllamaProbe
from proxy.backends.probes.ollama_models import Learned
from proxy.backends.probes.ollama_slots import OllamaSlots
from proxy.backends.verify import assumed_slots
from proxy.backends.watcher import Cadence
from proxy.endpoint import Endpoint
from scheduler.domain import Engine


class OwnProcess(msgspec.Struct, frozen=True):
    """The process of an engine that slotgate started."""

    pid: int | None
    environment: Mapping[str, str]


class Probing:
    """Opens probes for one backend; what they learn together stays here."""

    def __init__(self, placement: Placement, cadence: Cadence) -> None:
        self._placement = placement
        self._cadence = cadence
        self._learned = Learned()

    def loaded_by_default(self, model: str) -> None:
        """A model was just loaded by a request that said no context: its context is the engine's default."""
        self._learned.expect(model)

    async def open(self, endpoint: Endpoint, own: OwnProcess | None = None) -> Probe:
        """A probe for the engine that runs there; an external one is asked which it is, unless that is configured.

        Raises:
            ProbeError: which engine it is cannot be told.
        """
        program, config = self._placement.program, self._placement.config
        if program is not None:
            return self.of(program.engine, endpoint, own)
        if config.engine != "auto":
            return self.of(Engine(config.engine), endpoint)
        control = Control(endpoint, self._cadence.timeout_s)
        try:
            return self.of(await detect(control), endpoint)
        finally:
            await control.close()

    def of(self, engine: Engine, endpoint: Endpoint, own: OwnProcess | None = None) -> Probe:
        """A probe for this engine. `own`: slotgate runs it."""
        cadence, config = self._cadence, self._placement.config
        if engine is Engine.LLAMA_SERVER:
            return LlamaServerProbe(Control(endpoint, cadence.timeout_s))
        configured = config.model_fields_set
        given = Given(
            slots=assumed_slots(config, engine),
            slots_configured="slots" in configured,
            context_tokens=config.context_tokens if own or "context_tokens" in configured else None,
            max_loaded=config.max_loaded_models if own or "max_loaded_models" in configured else 0,
            environment=own.environment if own else None,
            on_cpu=config.gpu_name is not None and config.gpu_name.lower() == "cpu",
            model_store=model_dir.named(config.store),
        )
        pid = own.pid if own else None
        finder = Finder(endpoint, (lambda: pid) if own else None)
        children = OllamaSlots(finder, timeout_s=cadence.timeout_s, spacing_s=cadence.child_spacing_s)
        control = Control(endpoint, cadence.slow_timeout_s)
        return OllamaProbe(control, given, children, self._learned, describe_every_s=cadence.describe_s)
