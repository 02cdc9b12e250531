"""`OLLAMA_HOST=slotgate ollama list|ps|show|run|stop|pull`: the requests that the command makes, in its order.

No Ollama is here to run. What it sends is read from its source (cmd/cmd.go, api/client.go: heartbeat first, fields
without `omitempty` always there); what it has to understand, and prints, is in the recording of the command line.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contract.exchanges import exchanges
from tests.contract.ollama_stand_in import OllamaStandIn, listing, without_context
from tests.proxy.box import Box, box, emulated
from tests.wait import until

HEADERS = {
    "User-Agent": "ollama/0.33.0 (amd64 linux) Go/go1.26",
    "Content-Type": "application/json",
    "Accept-Encoding": "gzip",
}
RECORDED = exchanges()


class Command:
    """What the command's Go client does."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """A request with one JSON answer; an error is raised as the command prints it."""
        content = None if body is None else json.dumps(body)
        answer = await self._client.request(
            method, path, content=content, headers=HEADERS | {"Accept": "application/json"}
        )
        if answer.status_code >= 400:
            raise RuntimeError(answer.json()["error"])
        return answer.json() if answer.content else None

    async def heartbeat(self) -> None:
        answer = await self._client.head("/", headers=HEADERS)
        assert answer.status_code == 200

    async def stream(self, path: str, body: Any) -> list[Any]:
        """A request whose answer is read line by line, each within 512 KB."""
        found = []
        headers = HEADERS | {"Accept": "application/x-ndjson"}
        async with self._client.stream("POST", path, content=json.dumps(body), headers=headers) as answer:
            async for line in answer.aiter_lines():
                record = json.loads(line)
                if "error" in record:
                    raise RuntimeError(record["error"])
                assert answer.status_code < 400
                found.append(record)
        return found

    async def show(self, name: str) -> Any:
        fields = {"model": name, "system": "", "template": "", "verbose": False, "options": None, "name": ""}
        return await self.ask("POST", "/api/show", fields)

    async def generate(self, name: str, prompt: str = "", **more: Any) -> list[Any]:
        fields = {"model": name, "prompt": prompt, "suffix": "", "system": "", "template": "", "options": None}
        return await self.stream("/api/generate", fields | more)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Box]:
    engines = [emulated("ollama", models=["smol", "other"]), emulated("ollama", models=["smol", "third"])]
    async with box(tmp_path, engines, residency={"clients_may_unload": True}) as found:
        yield found


async def test_list_and_ps(running: Box) -> None:
    command = Command(running.client)
    await command.heartbeat()
    listed = (await command.ask("GET", "/api/tags"))["models"]
    assert sorted(model["name"] for model in listed) == ["other:latest", "smol:latest", "third:latest"]
    for model in listed:  # what is printed: name, ID, size, modified
        assert len(model["digest"]) == 64
        assert model["size"] > 0
        assert model["modified_at"]

    await command.heartbeat()
    assert (await command.ask("GET", "/api/ps"))["models"] == []
    await command.generate("smol")
    await command.heartbeat()

    async def seen() -> bool:
        return bool((await command.ask("GET", "/api/ps"))["models"][0]["context_length"])

    await until(seen, "what is not known of a load by itself is known after the next look")
    [loaded] = (await command.ask("GET", "/api/ps"))["models"]
    # name, ID, size, processor, context, until
    assert loaded["name"] == "smol:latest"
    assert {"digest", "size", "size_vram", "context_length", "expires_at"} <= loaded.keys()


async def test_show(tmp_path: Path) -> None:
    stand_in: Any = OllamaStandIn(listing("smol"))
    async with box(tmp_path, [stand_in]) as found:
        command = Command(found.client)
        await command.heartbeat()
        shown = await command.show("smol")
        with pytest.raises(RuntimeError, match="model 'nope:latest' not found"):
            await command.show("nope")

    info = shown["model_info"]
    # As `ollama show smol` prints it in the recording of the command line.
    assert info["general.architecture"] == "llama"
    assert (info["llama.context_length"], info["llama.embedding_length"]) == (8192, 576)
    assert (shown["details"]["parameter_size"], shown["details"]["quantization_level"]) == ("134.52M", "Q4_1")
    assert shown["capabilities"] == ["completion"]
    assert shown["parameters"].split() == ["stop", '"<|im_end|>"']
    [asked] = [asked for asked in stand_in.got("/api/show") if "system" in asked.json]  # slotgate asks for itself too
    assert (asked.json["model"], asked.json["verbose"]) == ("smol", False), "what the client says goes on"


async def test_run_with_a_prompt(running: Box) -> None:
    command = Command(running.client)
    await command.heartbeat()
    await command.show("smol")
    records = await command.generate("smol", "Say hi", options={})

    *pieces, last = records
    assert "".join(piece["response"] for piece in pieces)
    assert [piece["done"] for piece in pieces] == [False] * len(pieces)
    assert last["done_reason"] in ("stop", "length")
    assert {"total_duration", "load_duration", "prompt_eval_count", "eval_count", "eval_duration"} <= last.keys()


async def test_run_interactively_and_stop(running: Box) -> None:
    command = Command(running.client)
    await command.heartbeat()
    await command.show("smol")
    [loaded] = await command.generate("smol")
    assert (loaded["done"], loaded["done_reason"], loaded["response"]) == (True, "load", "")
    for text in ("Hello", "And again"):
        message = {"role": "user", "content": text}
        records = await command.stream("/api/chat", {"model": "smol", "messages": [message], "options": {}})
        assert records[-1]["done"]
        assert all(record["message"]["role"] == "assistant" for record in records)

    await command.heartbeat()
    await command.show("smol")
    [unloaded] = await command.generate("smol", keep_alive="0s")
    assert (unloaded["done_reason"], unloaded["response"]) == ("unload", "")


async def test_stop_needs_rights_as_configured(tmp_path: Path) -> None:
    async with box(tmp_path, [emulated("ollama")]) as found:
        command = Command(found.client)
        with pytest.raises(RuntimeError, match="unload"):
            await command.generate("smol", keep_alive="0s")
        await command.generate("smol", "still there")


async def test_run_of_a_model_that_is_not_there_pulls_it(running: Box) -> None:
    """It sees the 404 and tries to pull: closed to ordinary clients, in words that say what to do."""
    command = Command(running.client)
    with pytest.raises(RuntimeError, match="not found"):
        await command.show("nope")
    pull = {"model": "nope", "insecure": False, "username": "", "password": "", "name": ""}
    with pytest.raises(RuntimeError, match="slotgate pull"):
        await command.stream("/api/pull", pull)


async def test_version_and_account(running: Box) -> None:
    command = Command(running.client)
    assert (await command.ask("GET", "/api/version"))["version"]
    assert (await command.ask("GET", "/api/status"))["cloud"] == {"disabled": False, "source": "none"}
    assert (await command.ask("POST", "/api/me"))["name"] == "slotgate"
    with pytest.raises(RuntimeError, match="not currently signed in"):
        await command.ask("POST", "/api/signout")


async def test_run_of_a_cloud_model_that_nobody_is_signed_in_for(tmp_path: Path) -> None:
    """`ollama run` asks /api/me first, then hears from the Ollama itself where to sign in."""
    refusal = b'{"error":"unauthorized","signin_url":"https://ollama.com/connect"}'
    stand_in: Any = OllamaStandIn(listing("smol"), cloud={"kimi:cloud": (401, refusal)})
    async with box(tmp_path, [stand_in]) as found:
        command = Command(found.client)
        assert (await command.ask("POST", "/api/me"))["name"]
        answer = await found.client.post("/api/generate", json={"model": "kimi:cloud", "prompt": "x"}, headers=HEADERS)
    assert (answer.status_code, answer.content) == (401, refusal)


NAMES = ["smol", "smol:latest", "SMOL:Latest", "library/smol", "registry.ollama.ai/library/smol"]


@pytest.mark.parametrize("name", NAMES)
async def test_all_spellings_of_a_name_mean_the_model_and_come_back(name: str, running: Box) -> None:
    asked = {"model": name, "messages": [{"role": "user", "content": "x"}], "stream": False}
    answer = await running.client.post("/api/chat", json=asked)
    shown = await running.client.post("/api/show", json={"model": name})
    assert (answer.status_code, answer.json().get("model")) == (200, name), answer.text
    assert shown.status_code == 200


@pytest.mark.parametrize("key", ["Model", "MODEL", "mODEL"])
async def test_keys_in_another_case_are_read_and_go_on_as_they_are(key: str, tmp_path: Path) -> None:
    engines: Any = [OllamaStandIn(listing("embed")), OllamaStandIn(listing("smol"))]
    asked = {key: "Smol", "MESSAGES": [{"Role": "user", "Content": "x"}], "Stream": False}
    async with box(tmp_path, engines) as found:
        await found.client.post("/api/chat", json=asked)
        seen = [engine.got("/api/chat") for engine in engines]
    [came] = seen[1]
    assert not seen[0]
    assert without_context(came.json) == asked
