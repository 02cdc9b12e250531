"""Owns which backends a configuration means: names, the GPU of each, the CPU threads of each. Pure."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from proxy.backends.gpus import Discovery
from proxy.backends.launch import LaunchError, Program
from proxy.config import BackendConfig
from proxy.endpoint import parse_endpoint
from scheduler.domain import Engine, Gpu


@dataclass(frozen=True)
class Placement:
    """One backend to be."""

    name: str
    config: BackendConfig
    program: Program | None = None
    """None: external."""
    gpu: Gpu | None = None
    threads: int | None = None


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """CPU cores that this process may use: its affinity, and its control group's quota where one is set."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no control groups here, or version 1
    return cores


def place(
    configs: Sequence[BackendConfig],
    programs: Sequence[Program | None],
    discovery: Discovery,
    cores: int,
) -> list[Placement]:
    """Say which backends to run: `programs` is what each configuration runs (None: external), `cores` what the CPU
    engines share.

    Raises:
        LaunchError: a GPU that is not there, no model, or a name used twice.
    """
    for config, program in zip(configs, programs, strict=True):
        if program and program.engine is Engine.LLAMA_SERVER and config.model is None:
            raise LaunchError(f"backend {config.name or 'llama-server'}: set model to the path of a GGUF file")
    seats = [_gpus(config, discovery) if program else [None] for config, program in zip(configs, programs, strict=True)]
    cpu_engines = sum(
        gpus.count(None) for gpus, program, config in zip(seats, programs, configs, strict=True)
        if program and config.threads is None
    )  # fmt: skip
    share = max(1, cores // max(1, cpu_engines))
    placements = []
    for config, program, gpus in zip(configs, programs, seats, strict=True):
        for name, gpu in zip(_names(config, program, len(gpus)), gpus, strict=True):
            threads = config.threads or (share if program and gpu is None else None)
            placements.append(Placement(name, config, program, gpu, threads))
    _check_names([placement.name for placement in placements])
    return placements


def wants_gpus(configs: Sequence[BackendConfig]) -> bool:
    """Whether any backend depends on what NVML finds."""
    return any(config.url is None and config.gpus != "none" for config in configs)


def _gpus(config: BackendConfig, discovery: Discovery) -> list[Gpu | None]:
    on_cpu: list[Gpu | None] = [None] * (config.count or 1)
    if config.gpus == "none":
        return on_cpu
    if config.gpus == "auto":
        return list(discovery.gpus) or on_cpu
    chosen: list[Gpu | None] = []
    for wanted in config.gpus:
        matches = [gpu for gpu in discovery.gpus if wanted in {gpu.uuid, str(gpu.index)}]
        if not matches:
            there = ", ".join(f"{gpu.index} = {gpu.uuid} ({gpu.name})" for gpu in discovery.gpus)
            raise LaunchError(f"gpus: there is no GPU {wanted!r}; found: {there or discovery.problem or 'none'}")
        chosen += matches
    return chosen or on_cpu


def _names(config: BackendConfig, program: Program | None, count: int) -> list[str]:
    if config.url is not None and program is None:
        endpoint = parse_endpoint(config.url)
        # proxies that share a fleet must agree on the name of an external engine: made of its address
        return [config.name or (Path(endpoint.unix_path).stem if endpoint.unix_path else endpoint.host)]
    engine = program.engine if program else Engine.LLAMA_SERVER
    base = config.name or engine.value
    return [base] if count == 1 else [f"{base}-{index}" for index in range(count)]


def _check_names(names: list[str]) -> None:
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise LaunchError(f"backend names must differ; used twice: {', '.join(twice)}; set name in each [[backends]]")
