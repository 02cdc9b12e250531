"""An `ollama serve` that is none, with real processes: a llama-server for each model that it is told to have loaded.

Both programs are small scripts that answer as captured. What they do next is told to them over HTTP, at /played.
"""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from proxy.backends.control import Control, ProbeError
from proxy.backends.statedir import free_port
from proxy.endpoint import parse_endpoint
from tests.wait import until

SMOL = "941f309b54caaad6747569ba43712bcde44a2be3bae16c3282ff499c37c54af5"
OTHER = "b" * 64

_HTTP = """\
#!/usr/bin/env -S {python} -IS
import http.server, json, os, signal, subprocess, sys, time, urllib.request

class Answering(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.reply(*self.answer(self.path, b""))

    def do_POST(self):
        self.reply(*self.answer(self.path, self.rfile.read(int(self.headers.get("Content-Length", 0)))))

    def reply(self, status, content):
        body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass
"""

_LLAMA_SERVER = (
    _HTTP
    + """
arguments = sys.argv[1:]
said = {name: value for name, value in zip(arguments, arguments[1:])}
slots = int(said["-np"])
played = {"busy": [], "sleeping": False, "loading": False, "delay_s": 0, "no_slots": False, "decoded": 0}
asked = []

class LlamaServer(Answering):
    def answer(self, path, body):
        if path == "/played":
            if body:
                played.update(json.loads(body))
            return 200, {"asked": asked}
        asked.append([path, time.monotonic()])
        time.sleep(played["delay_s"])
        if played["loading"]:
            return 503, {"error": {"code": 503, "message": "Loading model"}}
        if path == "/props":
            settings = {"n_ctx": int(said["-c"]) // slots}
            return 200, {"default_generation_settings": settings, "total_slots": slots, "model_path": said["--model"],
                         "model_alias": said["--model"], "is_sleeping": played["sleeping"], "endpoint_slots": True}
        if path == "/slots" and not played["no_slots"]:
            return 200, [{"id": n, "n_ctx": int(said["-c"]) // slots, "is_processing": n in played["busy"],
                          "n_prompt_tokens": 100 + n, "next_token": [{"n_decoded": played["decoded"]}]}
                         for n in range(slots)]
        if path == "/metrics" and os.environ.get("LLAMA_ARG_ENDPOINT_METRICS") == "1":
            return 200, f"llamacpp:requests_processing {len(played['busy'])}\\nllamacpp:requests_deferred 1\\n"
        return 501, {"error": {"code": 501, "message": "This server does not support this endpoint."}}

http.server.ThreadingHTTPServer((said["--host"], int(said["--port"])), LlamaServer).serve_forever()
"""
)

_OLLAMA = (
    _HTTP
    + """
assert sys.argv[1:] == ["serve"]
models = json.loads(os.environ["PLAYED_MODELS"])
children, loaded = {}, {}
here = os.path.dirname(os.path.abspath(sys.argv[0]))
shown = []

def load(name, port, blob, context, parallel=2, flags=()):
    argv = [os.path.join(here, "llama-server"), "--model", f"/models/blobs/sha256-{blob}", "--port", str(port),
            "--host", "127.0.0.1", "--no-webui", "--offline", "-c", str(context * parallel), "-np", str(parallel),
            "--log-verbosity", "4", "-b", "512", *(flags or ("--context-shift", "--keep", "4"))]
    children[name] = subprocess.Popen(argv)
    for _ in range(1000):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/played").read()
            break
        except OSError:
            time.sleep(0.01)
    digest = models[name]["listing"]["digest"] if name in models else ""
    loaded[name] = {"name": name, "model": name, "digest": digest, "size": 1000, "size_vram": 1000,
                    "context_length": context, "expires_at": "2318-03-09T01:02:03Z"}
    return children[name].pid

class Ollama(Answering):
    def answer(self, path, body):
        said = json.loads(body) if body else {}
        if path == "/":
            return 200, "Ollama is running"
        if path == "/api/version":
            return 200, {"version": "0.33.0"}
        if path == "/api/tags":
            return 200, {"models": [model["listing"] for model in models.values()]}
        if path == "/api/ps":
            return 200, {"models": list(loaded.values())}
        if path == "/api/show":
            shown.append(said["model"])
            return 200, models[said["model"]]["show"]
        if path == "/played/load":
            return 200, {"pid": load(**said)}
        if path == "/played/list":
            loaded[said["name"]] = said
            return 200, {}
        if path == "/played/delete":
            del models[said["name"]]
            return 200, {}
        if path == "/played/unload":
            loaded.pop(said["name"], None)
            if said["name"] in children:
                child = children.pop(said["name"])
                child.kill()
                child.wait()
            return 200, {}
        if path == "/played/shown":
            return 200, {"shown": shown}
        return 404, "404 page not found"

def leave(*_):
    for child in children.values():
        child.kill()
    os._exit(0)

signal.signal(signal.SIGTERM, leave)
host, port = os.environ["OLLAMA_HOST"].rsplit(":", 1)
http.server.ThreadingHTTPServer((host, int(port)), Ollama).serve_forever()
"""
)


def model(
    name: str, blob: str, digest: str = "", parameters: str = "", capabilities: tuple[str, ...] = ("completion",)
) -> dict[str, Any]:
    """One model of its store: its entries in /api/tags and /api/show."""
    details = {"format": "gguf", "family": "llama", "context_length": 8192}
    return {
        "listing": {
            "name": name,
            "model": name,
            "digest": digest or f"digest of {name}",
            "size": 98362861,
            "details": details,
            "capabilities": list(capabilities),
        },
        "show": {
            "modelfile": f"# FROM {name}\n\nFROM /models/blobs/sha256-{blob}\nTEMPLATE x\n",
            "parameters": parameters,
            "model_info": {"general.architecture": "llama", "llama.context_length": 8192},
            "capabilities": list(capabilities),
        },
    }


MODELS = [
    model("smol:latest", SMOL),
    model("small:latest", OTHER, parameters="num_ctx                        1024"),
]


def write_played_ollama(directory: Path) -> Path:
    """The executable; beside it its llama-server."""
    for name, text in (("ollama", _OLLAMA), ("llama-server", _LLAMA_SERVER)):
        path = directory / name
        # a first line of a script may be too short for the path of this Python: env -S has no such limit
        path.write_text(text.replace("{python}", sys.executable))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return directory / "ollama"


def played_environment(models: list[dict[str, Any]] | None = None) -> dict[str, str]:
    """What the executable needs in its environment."""
    listed = MODELS if models is None else models
    return {"PLAYED_MODELS": json.dumps({each["listing"]["name"]: each for each in listed})}


class PlayedOllama:
    """One that runs outside of slotgate."""

    def __init__(self, directory: Path, models: list[dict[str, Any]] | None = None, **environment: str) -> None:
        self.port = free_port(24000 + os.getpid() % 10000)
        self.url = f"http://127.0.0.1:{self.port}"
        self._program = write_played_ollama(directory)
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("OLLAMA_", "LLAMA_", "CUDA_"))
        }
        self._environment = kept | played_environment(models) | environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        environment = self._environment | {"OLLAMA_HOST": f"127.0.0.1:{self.port}"}
        self._process = subprocess.Popen([str(self._program), "serve"], env=environment)
        await until(self._answers, "the played Ollama serves")

    async def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    async def load(self, name: str, blob: str, context: int = 4096, **more: Any) -> "PlayedChild":
        port = free_port(self.port + 1)
        told = await play(
            self.url, "/played/load", {"name": name, "port": port, "blob": blob, "context": context} | more
        )
        return PlayedChild(told["pid"], port)

    async def unload(self, name: str) -> None:
        await play(self.url, "/played/unload", {"name": name})

    async def delete(self, name: str) -> None:
        """From the disk: what is loaded stays so."""
        await play(self.url, "/played/delete", {"name": name})

    async def list_as_loaded(self, name: str, **more: Any) -> None:
        """Without a llama-server of its own."""
        await play(self.url, "/played/list", {"name": name, "context_length": 4096} | more)

    async def shown(self) -> list[str]:
        return list((await play(self.url, "/played/shown", None))["shown"])

    async def _answers(self) -> bool:
        try:
            return bool(await play(self.url, "/api/version", None))
        except ProbeError:
            return False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


class PlayedChild:
    """A llama-server of a played Ollama."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port

    async def be(self, **state: Any) -> None:
        """From now on: busy (numbers of slots), sleeping, loading, delay_s, no_slots, decoded."""
        await play(f"http://127.0.0.1:{self.port}", "/played", state)

    async def asked(self, path: str = "/slots") -> list[float]:
        """When it was asked."""
        told = await play(f"http://127.0.0.1:{self.port}", "/played", None)
        return [at_s for asked, at_s in told["asked"] if asked == path]


async def play(url: str, path: str, content: Any) -> Any:
    control = Control(parse_endpoint(url), 10)
    try:
        answer = await (control.get(path) if content is None else control.post(path, content))
        assert answer.status == 200, answer
        return answer.json(dict[str, Any])
    finally:
        await control.close()
