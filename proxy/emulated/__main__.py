"""`python -m proxy.emulated`: one emulated engine as a process of its own. Owns the command line only."""

import argparse
import asyncio
import math
import os
import signal
import sys
from pathlib import Path

import structlog

from proxy.emulated.as_ollama import check_command, child_metrics, is_version, read_environment
from proxy.emulated.emulated_engine import EmulatedEngine
from proxy.emulated.engine import Departure
from proxy.emulated.options import Options, read_model
from scheduler.simulation.step_times import PRESETS

log = structlog.get_logger("slotgate.emulated")


def _range(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    numbers = int(low), int(high or low)
    if not 0 < numbers[0] <= numbers[1]:
        raise argparse.ArgumentTypeError("write N or FROM-TO, from 1 up")
    return numbers


def _speed(text: str) -> float:
    speed = float(text)
    if not speed > 0 or math.isnan(speed):
        raise argparse.ArgumentTypeError("write a number above 0, or inf")
    return speed


def build_parser() -> argparse.ArgumentParser:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m proxy.emulated", description=__doc__)
    add = parser.add_argument
    add("--api", choices=("llama-server", "ollama"), default="llama-server")
    add("--listen", default="127.0.0.1:0", metavar="HOST:PORT|unix:/PATH", help="port 0: any free one, logged")
    add("--address-file", type=Path, metavar="FILE", help="written once it listens: its URL, or unix:/PATH")
    add(
        "--model",
        action="append",
        metavar="NAME[,KEY=VALUE...]",
        help="may be repeated with --api=ollama; keys: size, parameters, context, embedding, family, quantization, "
        "weights, capabilities (joined by +), num_ctx",
    )
    add("--capabilities", default="completion,tools", help="of every model, by comma, in Ollama's words")
    add("--slots", type=int, default=4, help="parallel sequences (per model)")
    add("--context", type=int, default=4096, help="tokens per slot")
    add("--card", choices=sorted(PRESETS), default="4090", help="whose step times are used")
    add("--speed", type=_speed, default=1.0, help="divides all times; inf: nothing waits")
    add("--batch", type=int, default=512, help="tokens per step at most")
    add("--host-cache-tokens", type=int, default=0, metavar="N", help="size of the host prompt cache; 0: none")
    add("--copy-idle-slots", action="store_true", help="every task first copies idle slots to the host cache")
    add("--kv-unified", action="store_true", help="one KV pool: idle slots that were copied are cleared")
    add("--seed", type=int, default=0, help="of the pseudo text")
    add("--answer-tokens", type=_range, default=(128, 128), metavar="N|FROM-TO", help="when answers end by themselves")
    add("--api-key-file", type=Path, help="one key per line")
    add("--load", type=float, default=0.0, metavar="SECONDS", help="time to load a model")
    add("--max-loaded", type=int, default=3, help="Ollama: models in memory")
    add("--max-queue", type=int, default=512, help="Ollama: requests that may wait for loads")
    add(
        "--keep-alive", type=float, default=300.0, metavar="SECONDS", help="Ollama: idle time until a model is unloaded"
    )
    add("--memory", type=float, default=0, metavar="GIB", help="Ollama: what the card holds; 0: no limit")
    add("--children", action="store_true", help="Ollama: a real llama-server-like process for each loaded model")
    add("--ps-stall", type=float, default=0, metavar="SECONDS", help="Ollama: /api/ps hangs so at loads and unloads")
    add("--models-dir", default="", metavar="DIR", help="Ollama: the model store, which several may share")
    add("--registry", action="append", default=[], metavar="NAME[,KEY=VALUE...]", help="Ollama: what can be pulled")
    add("--registry-speed", type=_speed, default=math.inf, metavar="BYTES", help="Ollama: bytes per second of a pull")
    add("--cloud", action="store_true", help="Ollama: signed in, so that cloud models are answered")
    add(
        "--departure",
        choices=[kind.value for kind in Departure],
        default=Departure.LAZY.value,
        help="how clients that left are noticed",
    )
    add("--embeddings", action="store_true")
    add("--reranking", action="store_true")
    add("--infill", action="store_true")
    add("--no-metrics", action="store_true")
    add("--slot-save-path", default="", metavar="DIR")
    add("--faults", action="store_true", help="have /emulated/faults and /emulated/state")
    add("--uvloop", action="store_true", help="run on uvloop")
    add(
        "--as-ollama",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="the last option: stand in for the program `ollama`, with its arguments (serve) and its environment",
    )
    return parser


def make_engine(arguments: argparse.Namespace) -> EmulatedEngine:
    """The engine that the command line describes; as Ollama, the environment too, which wins.

    Raises:
        OSError: the key file cannot be read.
        ValueError: a model, or something of the environment, is not understood.
    """
    capabilities = tuple(arguments.capabilities.split(","))
    keys = arguments.api_key_file.read_text().split() if arguments.api_key_file else []
    has_own_store = bool(arguments.models_dir or (arguments.as_ollama and os.environ.get("OLLAMA_MODELS")))
    names = arguments.model or ([] if has_own_store else ["emulated"])
    values = {
        "listen": arguments.listen,
        "slots": arguments.slots,
        "context": arguments.context,
        "host_cache_tokens": arguments.host_cache_tokens,
        "copy_idle_slots": arguments.copy_idle_slots,
        "max_loaded": arguments.max_loaded,
        "max_queue": arguments.max_queue,
        "keep_alive_s": arguments.keep_alive,
        "models_dir": arguments.models_dir,
        "child_metrics": child_metrics(os.environ),
    }
    if arguments.as_ollama is not None:
        check_command(arguments.as_ollama)
        values |= read_environment(os.environ)
    engine = EmulatedEngine(
        arguments.api,
        models=[read_model(name, capabilities) for name in names],
        registry=[read_model(name, capabilities) for name in arguments.registry],
        registry_bytes_per_s=arguments.registry_speed,
        card=PRESETS[arguments.card],
        speed=arguments.speed,
        batch=arguments.batch,
        kv_unified=arguments.kv_unified,
        seed=arguments.seed,
        answer_tokens=arguments.answer_tokens,
        api_keys=tuple(keys),
        load_s=arguments.load,
        memory_bytes=int(arguments.memory * 2**30),
        children=arguments.children,
        ps_stall_s=arguments.ps_stall,
        cloud=arguments.cloud,
        departure=Departure(arguments.departure),
        embeddings=arguments.embeddings,
        reranking=arguments.reranking,
        infill=arguments.infill,
        metrics=not arguments.no_metrics,
        save_path=arguments.slot_save_path,
        fault_route=arguments.faults,
        **values,
    )
    engine.dies_for_real = True
    return engine


async def run(engine: EmulatedEngine, address_file: Path | None = None) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        OSError: the address cannot be had, or the file not be written.
    """
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with engine:
        if address_file is not None:
            part = address_file.with_name(f"{address_file.name}.part")  # whoever finds the file finds all of it
            part.write_text(engine.url)
            part.replace(address_file)
        log.info("listening", url=engine.url, api=engine.options.api, slots=engine.options.slots)
        await stopped.wait()


def main(argv: list[str] | None = None) -> int:
    """Run; the exit status."""
    arguments = build_parser().parse_args(argv)
    if arguments.as_ollama is not None and is_version(arguments.as_ollama):
        sys.stdout.write(f"ollama version is {Options().version}\n")
        return 0
    try:
        engine = make_engine(arguments)
        if arguments.uvloop:
            import uvloop

            uvloop.run(run(engine, arguments.address_file))
        else:
            asyncio.run(run(engine, arguments.address_file))
    except (OSError, ValueError) as error:
        log.error("cannot start", error=str(error), listen=arguments.listen)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
