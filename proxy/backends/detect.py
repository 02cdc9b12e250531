"""Owns telling which engine answers at an address. Asks only what no engine minds."""

from proxy.backends.control import Control, ProbeError
from proxy.backends.probes.llama_server import Props, check
from proxy.backends.probes.ollama import GREETING
from scheduler.domain import Engine


async def detect(control: Control) -> Engine:
    """Which engine it is.

    Raises:
        ProbeError: nobody answers, the API key is missing or wrong, or it is something else; the message says which.
    """
    root = await control.get("/")
    if root.status == 200 and GREETING in root.body:
        return Engine.OLLAMA
    answer = await control.get("/props")
    is_llama = answer.headers.get("server") == "llama.cpp"
    if is_llama and answer.status == 503:
        return Engine.LLAMA_SERVER  # it still loads its model
    if answer.status == 401 or root.status == 401:
        name = "llama-server" if is_llama else "the engine"
        raise ProbeError(f"{name} wants an API key, or another one: set api_key of this backend")
    if is_llama or answer.status == 200:
        check(answer)
        if is_llama or answer.json(Props).total_slots > 0:
            return Engine.LLAMA_SERVER
    raise ProbeError(
        f"neither an Ollama nor a llama-server answers there (GET / gave status {root.status}, /props {answer.status})"
    )
