"""Owns all backends together: which there are, their start and their stop. One member each does the rest.

Backends of this proxy are started and looked at here, and the other proxies are told of them; of theirs it hears.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from proxy.backends import orphans
from proxy.backends.announce import Announcer
from proxy.backends.boxes import Box, this_box
from proxy.backends.cloud_choice import CloudChoice
from proxy.backends.embedded import gpus_listed
from proxy.backends.gpu_memory import GpuMemorySampler, Occupant
from proxy.backends.gpus import Discovery, discover_async
from proxy.backends.launch import Program, choose_program
from proxy.backends.member import Member, MemberStatus, Surroundings
from proxy.backends.placement import Placement, place, usable_cores, wants_gpus
from proxy.backends.remote import BackendNews, RemoteFleet, known_keys
from proxy.backends.remote_member import Outside
from proxy.backends.statedir import StateDir
from proxy.backends.supervisor import Timing
from proxy.backends.watcher import Cadence
from proxy.config import BackendConfig
from proxy.config_section import keep_alive_s
from proxy.dialects.facts import EngineFacts
from proxy.endpoint import Endpoint, Gate
from proxy.store.keys import record_ttl_ms
from proxy.store.records import BackendListing, BackendRecord
from proxy.tasks import Tasks
from scheduler.events import Event
from scheduler.news import Hello, ListWanted, LookWanted

log = structlog.get_logger("slotgate.fleet")

SHIPPED_KEEP_ALIVE_S = 300.0
"""What an Ollama does with models that nobody told it how long to keep (envconfig/config.go, KeepAlive, 0.33)."""
RESTART_GRACE_S = 10.0


class Fleet:
    """All backends, external and managed."""

    def __init__(
        self,
        configs: Sequence[BackendConfig],
        *,
        state_dir: Path,
        emit: Callable[[Event], None],
        clock: Callable[[], float] = time.monotonic,
        cadence: Cadence = Cadence(),  # noqa: B008 - frozen
        timing: Timing | None = None,
        nvml: Any = None,
        box: Box | None = None,
        gate: Gate | None = None,
        known: Sequence[BackendConfig] = (),
        lease_ttl_s: float = 15.0,
    ) -> None:
        """Keep the settings; `start` begins.

        Args:
            configs: the backends that this proxy looks after.
            state_dir: where what they need is kept.
            emit: called in the event loop with each fact for the scheduler.
            clock: that of the scheduler.
            cadence: when engines are looked at.
            timing: of starts and stops; default: as configured.
            nvml: stands in for pynvml in tests.
            box: where this proxy runs.
            gate: where other boxes reach the backends of this one.
            known: backends that are configured here and that another process looks after.
            lease_ttl_s: of the store: a proxy that is not heard of for so long is silent.
        """
        self.on_endpoint_changed: Callable[[str], None] | None = None
        """Called with a backend's id when pooled connections to it must be closed: it ends, or was started anew."""
        self.announce: Callable[[list[BackendRecord]], None] = lambda _records: None
        """Called with all records of this proxy's backends when one has changed, for the registry."""
        self.box = box or this_box()
        self.outside = Outside(self.box, emit, flush=self._flush, keys=known_keys(known, self.box), clock=clock)
        """Who listens to what this proxy tells of its backends, and hears of others'."""
        self.discovery = Discovery()
        self._configs = list(configs)
        self._tasks = Tasks()
        self._state_dir = StateDir(state_dir)
        self._around = Surroundings(self._state_dir, self._emit, self._flush, cadence, timing, clock)
        self._nvml = nvml
        self._members: dict[str, Member] = {}
        self._keep_alive_s: dict[str, float] = {}
        self._sampler: GpuMemorySampler | None = None
        self._cloud = CloudChoice((), None)
        self.own = Own(self._members)
        """The backends of this proxy only: what a gate lets others in to."""
        self._announcer = Announcer(self.own, self.box, gate, clock)
        self._remote = RemoteFleet(
            self.outside,
            is_own=lambda store_id: self._announcer.local_id(store_id) is not None,
            own_names=lambda: self._members,
            lease_ttl_s=lease_ttl_s,
            record_ttl_s=record_ttl_ms(round(lease_ttl_s * 1000)) / 1000,
        )

    async def start(self) -> None:
        """Begin with all backends; readiness is told by events.

        Raises:
            LaunchError: the configuration asks for what is not there (program, GPU, a name twice).
            StateDirError: the state directory cannot be used, or another slotgate uses it.
            TimeoutError: an engine of an earlier run does not end.
        """
        programs = await asyncio.to_thread(self._choose_programs)
        if any(programs):
            await asyncio.to_thread(self._take_state_dir)
        try:
            if wants_gpus(self._configs):
                self.discovery = await self._discover(programs)
            cores = await asyncio.to_thread(usable_cores)
            placements = place(self._configs, programs, self.discovery, cores)
            chosen = next((placement.name for placement in placements if placement.config.cloud), None)
            self._cloud = CloudChoice([placement.name for placement in placements], chosen)
            for placement in placements:
                if placement.config.url is None:
                    self._keep_alive_s[placement.name] = keep_alive_s(placement.config.keep_alive)
                self._members[placement.name] = Member(placement, self._around)
            await asyncio.to_thread(self._foresee_endpoints)
        except BaseException:
            self._state_dir.close()
            raise
        for member in self._members.values():
            member.start()
        self._sampler = self._make_sampler(placements)
        self._sampler.start()

    async def stop(self, grace_s: float) -> None:
        """End all managed engines: SIGTERM, connections closed, SIGKILL after the grace. Call it when drained."""
        await self._tasks.close()
        if self._sampler is not None:
            await self._sampler.close()
        results = await asyncio.gather(
            *(member.stop(grace_s) for member in self._members.values()), return_exceptions=True
        )
        for name, result in zip(self._members, results, strict=True):
            if isinstance(result, Exception):
                log.error("backend did not stop cleanly", backend=name, error=repr(result))
        self._state_dir.close()

    # all backends, whoever looks after them

    def endpoint(self, backend_id: str) -> Endpoint:
        """Where a backend is reached now.

        Raises:
            LookupError: no such backend, or no address was found for it yet.
        """
        member = self._members.get(backend_id)
        return member.endpoint if member else self._remote.endpoint(backend_id)

    def facts(self, backend_id: str) -> EngineFacts | None:
        """What the engine said of itself; None before it has, or for an unknown backend."""
        member = self._members.get(backend_id)
        return member.facts if member else self._remote.facts(backend_id)

    def look(self, backend_id: str, at_s: float) -> None:
        """Look at a backend at the given time of the clock, or as soon after it as its spacing allows."""
        if member := self._members.get(backend_id):
            member.look(at_s)
        else:
            self._remote.look(backend_id, at_s)

    def loaded_by_default(self, backend_id: str, model: str) -> None:
        """A model was just loaded by a request that said no context: the next look shows the engine's default.

        Another proxy's backend, or an unknown one: nothing happens.
        """
        if member := self._members.get(backend_id):
            member.loaded_by_default(model)

    async def list_models(self, backend_id: str) -> None:
        """Read the list of models of a backend now: what is on its disk was changed. Returns when that is done, or, for
        one that another proxy looks after, when that one was asked to. A backend that does not answer is left alone.
        """
        if member := self._members.get(backend_id):
            await member.list_models()
        else:
            self._remote.list_models(backend_id)

    async def restart(self, backend_id: str, grace_s: float = RESTART_GRACE_S) -> None:
        """Start a managed backend anew, also one whose restart budget is spent.

        Raises:
            LookupError: no such backend.
            ValueError: it is external, or another proxy's.
        """
        if backend_id in self._remote:
            raise ValueError(f"{backend_id} belongs to the proxy {self._remote.owner(backend_id)}: restart it there")
        await self._members[backend_id].restart(grace_s)

    def keep_alive_s(self, backend_id: str) -> float:
        """Seconds that an idle model stays loaded there; below 0: for ever. As shipped, where we did not start it."""
        return self._keep_alive_s.get(backend_id, SHIPPED_KEEP_ALIVE_S)

    def status(self) -> list[MemberStatus]:
        """All backends: this proxy's in the order of the configuration, then those of others by name."""
        return [member.status() for member in self._members.values()] + self._remote.status()

    def store_id(self, backend_id: str) -> str:
        """The store's name of a backend: the same for all proxies."""
        known = self._announcer.store_id(backend_id) or self._remote.store_id(backend_id)
        return known or f"{self.box.id}/{backend_id}"

    def local_id(self, store_id: str) -> str | None:
        """The name that a backend has here; None: it is not known (yet)."""
        return self._announcer.local_id(store_id) or self._remote.local_id(store_id)

    # the rest of the fleet

    def refresh(self, listing: Iterable[BackendListing], proxies: Collection[str], *, up: bool = True) -> None:
        """Take in the registry; see `RemoteFleet.refresh`."""
        self._remote.refresh(listing, proxies, up=up)

    def hear(self, owner: str, news: BackendNews | LookWanted | ListWanted | Hello) -> None:
        """Take in what another proxy tells of its backends, wants to be looked at, or has to be told of ours."""
        match news:
            case LookWanted():
                if (name := self._announcer.local_id(news.backend_id)) is not None:
                    self._members[name].look(self._around.clock() + news.in_s)
            case ListWanted():
                if (name := self._announcer.local_id(news.backend_id)) is not None:
                    self._tasks.start(self._members[name].list_models(), f"list of models of {name}")
            case Hello():
                for each in self._announcer.retold():
                    self.outside.tell(each)
            case _:
                self._remote.hear(owner, news)

    def _emit(self, event: Event) -> None:
        """A fact about a backend of this proxy: for the others, and for the scheduler."""
        for told in self._cloud.take(event):
            for news in self._announcer.take(told):
                self.outside.tell(news)
            self.outside.emit(told)
        if (records := self._announcer.changed_records()) is not None:
            self.announce(records)

    def _flush(self, backend_id: str) -> None:
        if self.on_endpoint_changed is not None:
            self.on_endpoint_changed(backend_id)

    def _make_sampler(self, placements: Sequence[Placement]) -> GpuMemorySampler:
        occupants = [
            Occupant(placement.name, placement.gpu.uuid, self._state_dir.marker(placement.name))
            for placement in placements
            if placement.gpu is not None
        ]
        return GpuMemorySampler(self._emit, occupants, nvml=self._nvml, clock=self._around.clock)

    def _choose_programs(self) -> list[Program | None]:
        return [None if config.url is not None else choose_program(config) for config in self._configs]

    def _take_state_dir(self) -> None:
        self._state_dir.open()
        files = self._state_dir.pid_files().values()
        recorded = [process for file in files for process in (file.keeper, file.engine) if process is not None]
        try:
            ended = orphans.sweep(self._state_dir.marker(), recorded)
        except TimeoutError:
            self._state_dir.close()
            raise
        if ended:
            log.warning("ended engines that an earlier run left", pids=ended)

    def _foresee_endpoints(self) -> None:
        for member in self._members.values():
            member.foresee_endpoint()

    async def _discover(self, programs: Sequence[Program | None]) -> Discovery:
        discovery = await discover_async(self._nvml)
        if not discovery.gpus:
            return discovery
        for config, program in zip(self._configs, programs, strict=True):
            if program and program.embedded and config.gpus == "auto" and not await _uses_gpus(program):
                problem = "the embedded engine is built for the CPU; install llama-server to use the GPUs"
                log.warning("gpus stay unused", reason=problem)
                return Discovery(problem=problem)
        return discovery


class Own:
    """The backends that this proxy looks after itself; asked for others, each raises LookupError."""

    def __init__(self, members: Mapping[str, Member]) -> None:
        self._members = members

    def endpoint(self, backend_id: str) -> Endpoint:
        """Where it is reached; LookupError also if no address was found yet."""
        return self._members[backend_id].endpoint

    def facts(self, backend_id: str) -> EngineFacts | None:
        """What its engine said of itself."""
        return self._members[backend_id].facts

    def key_file(self, backend_id: str) -> str:
        """The file with the API key that slotgate made for it; empty: it made none."""
        return self._members[backend_id].key_file


async def _uses_gpus(program: Program) -> bool:
    process = await asyncio.create_subprocess_exec(
        *program.argv, "--list-devices", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    output = b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60):
            output, _ = await process.communicate()
    if process.returncode is None:
        process.kill()
        await process.wait()
    return gpus_listed(output.decode(errors="replace")) > 0
