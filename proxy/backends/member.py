"""Owns one backend of the fleet: its process, if slotgate runs it, its watcher, its address, its status."""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from proxy.backends.launch import LaunchSpec, Places, launch_spec, loopback, model_name
from proxy.backends.placement import Placement
from proxy.backends.probes import Probe
from proxy.backends.probing import OwnProcess, Probing
from proxy.backends.statedir import StateDir, StateDirError
from proxy.backends.supervisor import State, Supervisor, Timing
from proxy.backends.verify import make_backend
from proxy.backends.watcher import Cadence, Subject, Watcher
from proxy.config_text import masked_flags, masked_variables
from proxy.dialects.facts import EngineFacts
from proxy.endpoint import Endpoint, parse_endpoint
from proxy.tasks import Tasks
from scheduler.domain import Backend, Engine
from scheduler.events import BackendChanged, BackendLeft, BackendSignalled, Event
from scheduler.health import Signal

log = structlog.get_logger("slotgate.member")


class MemberStatus(msgspec.Struct, frozen=True):
    """One backend for `slotgate status`. Nothing in it is secret."""

    name: str
    engine: str
    """ "unknown" until an external engine has been detected."""
    managed: bool
    state: str
    """stopped, starting, ready, ending, backoff, failed; not-answering for an engine that should and does not."""
    endpoint: str
    epoch: int
    pid: int | None = None
    keeper_pid: int | None = None
    restarts: int = 0
    gpu: str | None = None
    gpu_name: str | None = None
    version: str = ""
    models: tuple[str, ...] = ()
    slots: int | None = None
    running_limit: int | None = None
    slot_context_tokens: int | None = None
    slot_source: str = "leases"
    slot_source_why: str = ""
    """Why that one, in a sentence without its full stop; empty: it goes without saying."""
    busy_slots: int | None = None
    deferred: int | None = None
    wanted: tuple[str, ...] = ()
    """The command line; for Ollama its OLLAMA_* and LLAMA_ARG_* settings before it."""
    taken: dict[str, Any] = {}
    """What the engine says it really took."""
    warnings: tuple[str, ...] = ()
    log_path: str | None = None
    last_error: str = ""
    looked_s_ago: float | None = None
    box: str = ""
    """Name of the box where another proxy looks after it; empty: this proxy does."""
    owner: str = ""
    """That proxy."""


class Surroundings(msgspec.Struct, frozen=True):
    """What all members of a fleet share."""

    state_dir: StateDir
    emit: Callable[[Event], None]
    flush: Callable[[str], None]
    """Called with a backend's name when connections to it must be closed, or its address changed."""
    cadence: Cadence = Cadence()
    timing: Timing | None = None
    """Default: made from the backend's configuration."""
    clock: Callable[[], float] = time.monotonic


class Member:
    """One backend. Implements `supervisor.ProcessObserver` for its own process."""

    def __init__(self, placement: Placement, around: Surroundings) -> None:
        self.name = placement.name
        self._placement = placement
        self._around = around
        self._tasks = Tasks()
        self._watching: asyncio.Task[None] | None = None
        self._watcher: Watcher | None = None
        self._endpoint: Endpoint | None = None
        self._backend: Backend | None = None
        self._facts: EngineFacts | None = None
        self._readiness: tuple[Endpoint, Probe] | None = None
        self._probing = Probing(placement, around.cadence)
        config = placement.config
        self._supervisor: Supervisor | None = None
        if config.url is not None:
            self._endpoint = parse_endpoint(config.url, config.api_key)
        else:
            self._supervisor = Supervisor(
                self.name,
                self,
                around.state_dir,
                self._prepare,
                self._is_ready,
                restart=config.restart,
                timing=around.timing or Timing(start_timeout_s=config.start_timeout_s),
                clock=around.clock,
            )

    # what the fleet calls

    def start(self) -> None:
        """Begin; returns at once. From now on requests wait for it."""
        program, config = self._placement.program, self._placement.config
        if self._supervisor is None or program is None:
            engine = Engine.LLAMA_SERVER if config.engine == "auto" else Engine(config.engine)
            self._introduce(make_backend(self.name, config, engine, 0))
            self._watch(Subject(self.name, config, 0))
            return
        # an Ollama tells its models once it runs; until then it may have any
        expected = model_name(config) if program.engine is Engine.LLAMA_SERVER else None
        gpu = self._placement.gpu
        self._introduce(make_backend(self.name, config, program.engine, 0, expected_model=expected, gpu=gpu))
        self._supervisor.start()

    def foresee_endpoint(self) -> None:
        """Find out where a managed engine is going to be reached, before `start`. Blocks; call it in a thread.

        The store knows a backend by its address: so it has one name from the first moment on, and what an operator
        says of it before it runs still holds when it does.
        """
        program, state_dir = self._placement.program, self._around.state_dir
        if program is None:
            return
        try:
            if program.engine is Engine.OLLAMA:
                self._endpoint = loopback(state_dir.pick_port(self.name, self._placement.config.first_port))
            else:
                self._endpoint = Endpoint("localhost", unix_path=str(state_dir.socket_path(self.name)))
        except (StateDirError, OSError) as error:  # starting it meets the same problem, tells it, and tries again
            log.warning("address not known yet", backend=self.name, error=str(error))

    async def stop(self, grace_s: float) -> None:
        """Stop looking, end the process. An external engine is left alone."""
        self._stop_watching()
        await self._tasks.close()
        if self._supervisor is not None:
            await self._supervisor.stop(grace_s)
        await self._close_readiness()
        if self._backend is not None:
            self._around.emit(BackendLeft(self.name))

    async def restart(self, grace_s: float) -> None:
        """Start a managed engine anew, with a fresh restart budget.

        Raises:
            ValueError: it is external.
        """
        if self._supervisor is None:
            raise ValueError(f"{self.name} is external: slotgate cannot restart it")
        await self._supervisor.restart(grace_s)

    @property
    def key_file(self) -> str:
        """The file with the API key that slotgate made for it; empty: it made none."""
        made = self._supervisor is not None and self._endpoint is not None and self._endpoint.headers
        return str(self._around.state_dir.key_path(self.name)) if made else ""

    def loaded_by_default(self, model: str) -> None:
        """See `Probing.loaded_by_default`."""
        self._probing.loaded_by_default(model)

    async def list_models(self) -> None:
        """See `Watcher.list_models`."""
        if self._watcher is not None:
            await self._watcher.list_models()

    def look(self, at_s: float) -> None:
        """See `Watcher.look`; nothing to look at while the process is not ready."""
        if self._watcher is not None:
            self._watcher.look(at_s)

    @property
    def endpoint(self) -> Endpoint:
        """Where it is reached.

        Raises:
            LookupError: a managed engine for which no address was found yet.
        """
        if self._endpoint is None:
            raise LookupError(f"{self.name} has no address yet")
        return self._endpoint

    @property
    def facts(self) -> EngineFacts | None:
        """What the engine said of itself last; None before it said anything."""
        if self._watcher is not None and self._watcher.description is not None:
            self._facts = self._watcher.description.facts
        return self._facts

    # supervisor.ProcessObserver

    def started(self, spec: LaunchSpec, epoch: int) -> None:
        """It is another process; what it is and can do did not go with the last one."""
        self._endpoint = spec.endpoint
        self._around.flush(self.name)
        assert self._backend is not None  # noqa: S101 - `start` introduced it
        self._introduce(msgspec.structs.replace(self._backend, epoch=epoch))

    def ready(self, spec: LaunchSpec, epoch: int) -> None:
        """From now on it is looked at."""
        self._watch(Subject(self.name, self._placement.config, epoch, spec.gpu))

    def ending(self) -> None:
        """llama-server waits for its clients: their connections are closed."""
        self._stop_watching()
        self._around.flush(self.name)

    def exited(self, reason: str) -> None:
        """Nothing more to look at. Why is the supervisor's to remember."""
        del reason
        self._stop_watching()
        self._around.flush(self.name)
        self._around.emit(BackendSignalled(self.name, Signal.EXITED))

    # inside

    def _introduce(self, backend: Backend) -> None:
        self._backend = backend
        self._around.emit(BackendChanged(backend))
        self._around.emit(BackendSignalled(self.name, Signal.STARTED))

    def _watch(self, subject: Subject) -> None:
        self._stop_watching()
        self._watcher = Watcher(
            subject,
            self._open_probe,
            self._pass_on,
            cadence=self._around.cadence,
            clock=self._around.clock,
            known=self._backend,
            on_hung=self._supervisor.end_hung if self._supervisor else None,
        )
        self._watching = self._tasks.start(self._watcher.run(), f"watcher {self.name}")

    def _stop_watching(self) -> None:
        self._facts = self.facts
        if self._watching is not None:
            self._watching.cancel()
        self._watching = self._watcher = None

    def _pass_on(self, event: Event) -> None:
        if isinstance(event, BackendChanged):
            if self._backend is not None and self._backend.epoch != event.backend.epoch:
                self._around.flush(self.name)
            self._backend = event.backend
        self._around.emit(event)

    def _prepare(self) -> LaunchSpec:
        """Called in a thread before each start."""
        placement, state_dir, config = self._placement, self._around.state_dir, self._placement.config
        state_dir.make_directories()  # somebody may have removed them since the last start
        assert placement.program is not None  # noqa: S101 - only managed backends come here
        marker, log_path = state_dir.marker(self.name), state_dir.log_path(self.name)
        if placement.program.engine is Engine.OLLAMA:
            places = Places(log_path, marker, port=state_dir.pick_port(self.name, config.first_port))
        else:
            key_path, key = state_dir.write_key(self.name)
            socket_path = state_dir.socket_path(self.name)
            socket_path.unlink(missing_ok=True)  # left by the last process, which would keep the next from binding
            slots_path = state_dir.slots_path(self.name)
            places = Places(log_path, marker, socket_path, 0, key_path, key, slots_path)
        return launch_spec(
            config,
            placement.program,
            places,
            os.environ,
            name=self.name,
            gpu=placement.gpu,
            threads=placement.threads,
        )

    async def _is_ready(self, spec: LaunchSpec) -> bool:
        if self._readiness is None or self._readiness[0] != spec.endpoint:
            await self._close_readiness()
            self._readiness = (spec.endpoint, self._probing.of(spec.engine, spec.endpoint, self._own_process()))
        is_ready = await self._readiness[1].ready()
        if is_ready:
            await self._close_readiness()
        return is_ready

    async def _close_readiness(self) -> None:
        if self._readiness is not None:
            (_, probe), self._readiness = self._readiness, None
            await probe.close()

    async def _open_probe(self) -> Probe:
        """A probe that fits the engine; ProbeError: which engine it is cannot be told."""
        return await self._probing.open(self.endpoint, self._own_process())

    def _own_process(self) -> OwnProcess | None:
        if self._supervisor is None or self._supervisor.spec is None:
            return None
        return OwnProcess(self._supervisor.pid, self._supervisor.spec.env)

    def status(self) -> MemberStatus:
        """Everything that an operator may want to see."""
        watcher, supervisor, facts, backend = self._watcher, self._supervisor, self.facts, self._backend
        spec = supervisor.spec if supervisor else None
        gpu = self._placement.gpu
        look = watcher.last_look if watcher else None
        watched_s = watcher.looked_at_s if watcher else float("-inf")
        engine = facts.engine.value if facts else self._engine_wanted()
        return MemberStatus(
            name=self.name,
            engine=engine,
            managed=supervisor is not None,
            state=self._state(),
            endpoint=str(self._endpoint or ""),
            epoch=backend.epoch if backend else 0,
            pid=supervisor.pid if supervisor else None,
            keeper_pid=supervisor.keeper_pid if supervisor else None,
            restarts=supervisor.restarts if supervisor else 0,
            gpu=gpu.uuid if gpu else None,
            gpu_name=gpu.name if gpu else self._placement.config.gpu_name,
            version=facts.version if facts else "",
            models=tuple(model.name for model in facts.models) if facts else (),
            slots=backend.slots if backend else None,
            running_limit=backend.running_limit if backend else None,
            slot_context_tokens=facts.slot_context_tokens if facts else None,
            slot_source=backend.slot_source if backend else "leases",
            slot_source_why=self._slot_source_why(),
            busy_slots=look.busy_slots if look else None,
            deferred=look.deferred if look else None,
            wanted=_wanted(spec),
            taken=_taken(facts) if facts else {},
            warnings=self._warnings(),
            log_path=str(spec.log_path) if spec else None,
            last_error=(watcher.last_error if watcher else "") or (supervisor.last_error if supervisor else ""),
            looked_s_ago=None if watched_s == float("-inf") else self._around.clock() - watched_s,
        )

    def _slot_source_why(self) -> str:
        look = self._watcher.last_look if self._watcher else None
        source = self._backend.slot_source if self._backend else ""
        if source == "children" and look is not None and not look.residencies:
            return "no model is loaded"
        return self.facts.slot_source_why if self.facts else ""

    def _engine_wanted(self) -> str:
        program, config = self._placement.program, self._placement.config
        if program is not None:
            return program.engine.value
        return "unknown" if config.engine == "auto" else config.engine

    def _state(self) -> str:
        if self._supervisor is not None and self._supervisor.state is not State.READY:
            return self._supervisor.state.value
        watcher = self._watcher
        if watcher is None:
            return State.STOPPED.value
        if watcher.answered:
            return State.READY.value
        return "not-answering" if watcher.last_error else State.STARTING.value

    def _warnings(self) -> tuple[str, ...]:
        watcher = self._watcher
        if watcher is None:
            return ()
        deferred = watcher.last_look.deferred if watcher.last_look else None
        if deferred:
            return (*watcher.warnings, f"{deferred} requests wait inside the engine: somebody goes around slotgate")
        return watcher.warnings


def _wanted(spec: LaunchSpec | None) -> tuple[str, ...]:
    if spec is None:
        return ()
    shown = ("OLLAMA_", "LLAMA_ARG_", "CUDA_")
    settings = {key: value for key, value in sorted(spec.env.items()) if key.startswith(shown)}
    return (*(f"{key}={value}" for key, value in masked_variables(settings).items()), *masked_flags(spec.argv))


def _taken(facts: EngineFacts) -> dict[str, Any]:
    return {
        "slots": facts.slots,
        "slot_context_tokens": facts.slot_context_tokens,
        "models": [model.name for model in facts.models],
        "version": facts.version,
    }
