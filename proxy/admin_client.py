"""Asks the running proxy over its admin socket. Owns the conversation and its errors; prints nothing."""

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from proxy import admin_api, residency_api
from proxy.admin_api import (
    DrainAnswer,
    ErrorAnswer,
    ModelsAnswer,
    PolicyAnswer,
    PolicyChangedAnswer,
    PolicyChoice,
    PolicyReset,
    PolicySet,
    PsAnswer,
    RecentAnswer,
    RecentRequest,
    RestartAnswer,
    StatusAnswer,
    WorkersAnswer,
)
from proxy.explained import ExplainAnswer
from proxy.residency_api import LoadAnswer, ModelWish, PinAnswer, UnloadAnswer
from scheduler.presets import Value

Answer = TypeVar("Answer")
CLOSE = 0.85
"""How alike (0 to 1, of difflib) a known name must be to be guessed; below that all are listed: gpu-9 is not gpu-2."""


class AdminError(Exception):
    """The proxy could not be asked, or refused; the message says what to do."""


class NotRunning(AdminError):
    """Nothing answers at the admin socket."""


class AdminClient:
    """A conversation with the proxy behind one admin socket. Every method raises `AdminError`."""

    def __init__(self, socket_path: Path, timeout_s: float = 10.0) -> None:
        self._path = socket_path
        self._http = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(socket_path)), base_url="http://slotgate", timeout=timeout_s
        )

    def status(self) -> StatusAnswer:
        """The fleet."""
        return self._ask("GET", admin_api.STATUS, StatusAnswer)

    def ps(self) -> PsAnswer:
        """What is loaded where, what waits and what runs."""
        return self._ask("GET", admin_api.PS, PsAnswer)

    def models(self) -> ModelsAnswer:
        """Models that clients may ask for."""
        return self._ask("GET", admin_api.MODELS, ModelsAnswer)

    def recent(self) -> list[RecentRequest]:
        """The last requests that ended, newest last."""
        return self._ask("GET", admin_api.RECENT, RecentAnswer).requests

    def drain(self, backend: str) -> DrainAnswer:
        """Let a backend finish what runs and take nothing new."""
        return self._ask("POST", admin_api.drain_path(quote(backend, safe="")), DrainAnswer)

    def undrain(self, backend: str) -> DrainAnswer:
        """Let a backend take requests again."""
        return self._ask("POST", admin_api.undrain_path(quote(backend, safe="")), DrainAnswer)

    def restart(self, backend: str) -> RestartAnswer:
        """Begin to end a backend's engine and to start it again."""
        return self._ask("POST", admin_api.restart_path(quote(backend, safe="")), RestartAnswer)

    def workers(self) -> WorkersAnswer:
        """The processes that serve clients."""
        return self._ask("GET", admin_api.WORKERS, WorkersAnswer)

    def restart_workers(self) -> WorkersAnswer:
        """Begin to replace one after the other."""
        return self._ask("POST", admin_api.WORKERS_RESTART, WorkersAnswer)

    def change_models(self, change: str, body: Mapping[str, object]) -> Iterator[dict[str, Any]]:
        """Pull, delete or copy a model; yields what is told as it comes. Closing the iterator gives it up."""
        path = f"{admin_api.MODELS}/{change}"
        content = msgspec.json.encode(body)
        timeout = httpx.Timeout(10.0, read=None)  # a pull may be silent for long
        try:
            with self._http.stream("POST", path, content=content, timeout=timeout) as response:
                if response.status_code >= 400:
                    response.read()
                    raise AdminError(_refusal(response))
                for line in response.iter_lines():
                    yield msgspec.json.decode(line, type=dict[str, Any])
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        except msgspec.MsgspecError as error:
            raise AdminError(f"{self._path} answered POST {path} with something else ({error})") from error

    def load(self, wish: ModelWish) -> LoadAnswer:
        """Begin to load a model."""
        return self._ask("POST", residency_api.LOAD, LoadAnswer, wish)

    def load_state(self, load_id: str) -> LoadAnswer:
        """How far a load is."""
        return self._ask("GET", residency_api.load_path(quote(load_id, safe="")), LoadAnswer)

    def unload(self, wish: ModelWish) -> UnloadAnswer:
        """Have a model unloaded once nothing runs on it."""
        return self._ask("POST", residency_api.UNLOAD, UnloadAnswer, wish)

    def pin(self, wish: ModelWish) -> PinAnswer:
        """Keep a model loaded."""
        return self._ask("POST", residency_api.PIN, PinAnswer, wish)

    def unpin(self, wish: ModelWish) -> PinAnswer:
        """Keep it loaded no more."""
        return self._ask("POST", residency_api.UNPIN, PinAnswer, wish)

    def policy(self) -> PolicyAnswer:
        """The policy in force."""
        return self._ask("GET", admin_api.POLICY, PolicyAnswer)

    def set_policy(self, changes: Mapping[str, Value]) -> PolicyChangedAnswer:
        """Set keys of the policy; text is converted to each key's type."""
        return self._ask("POST", admin_api.POLICY_SET, PolicyChangedAnswer, PolicySet(dict(changes)))

    def choose_preset(self, name: str) -> PolicyChangedAnswer:
        """Choose a preset."""
        return self._ask("POST", admin_api.POLICY_PRESET, PolicyChangedAnswer, PolicyChoice(name))

    def reset_policy(self, keys: Sequence[str] = ()) -> PolicyChangedAnswer:
        """Take back what was set of these keys; without any, everything, the preset too."""
        return self._ask("POST", admin_api.POLICY_RESET, PolicyChangedAnswer, PolicyReset(list(keys)))

    def explain(self, request_id: str) -> ExplainAnswer:
        """Why a request ran where it did."""
        return self._ask("GET", admin_api.explain_path(quote(request_id, safe="")), ExplainAnswer)

    def close(self) -> None:
        """End the conversation."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, method: str, path: str, kind: type[Answer], body: msgspec.Struct | None = None) -> Answer:
        try:
            content = None if body is None else msgspec.json.encode(body)
            response = self._http.request(method, path, content=content)
        except httpx.TimeoutException as error:
            raise AdminError(f"slotgate does not answer at {self._path}: it hangs, or is very busy") from error
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if response.status_code >= 400:
            raise AdminError(_refusal(response))
        try:
            return msgspec.json.decode(response.content, type=kind)
        except msgspec.MsgspecError as error:
            raise AdminError(
                f"{self._path} answered {method} {path} with something else ({error}). "
                "Is it another program, or another version of slotgate?"
            ) from error

    def _unreachable(self, error: httpx.HTTPError) -> AdminError:
        path = self._path
        try:
            path.stat()
            denied = not os.access(path, os.W_OK)
        except PermissionError:
            denied = True
        except OSError:
            return NotRunning(
                f"slotgate is not running: there is no {path}\n"
                "start it with `slotgate serve` or `systemctl start slotgate`, or name its socket with --socket"
            )
        if denied:
            return AdminError(
                f"{path}: permission denied\njoin its group (usermod -aG slotgate USER, then log in again) or use sudo"
            )
        if isinstance(error, httpx.ConnectError):
            return NotRunning(f"slotgate is not running: nothing listens at {path}\nstart it with `slotgate serve`")
        return AdminError(f"slotgate closed the connection at {path}: {error}")


def _refusal(response: httpx.Response) -> str:
    try:
        answer = msgspec.json.decode(response.content, type=ErrorAnswer)
    except msgspec.MsgspecError:
        return f"slotgate answered {response.status_code}: {response.text[:200]}"
    if not answer.known:
        return answer.error
    in_path = response.request.url.path.split("/")[-2] if "/backends/" in response.request.url.path else ""
    asked = answer.asked or in_path
    near = difflib.get_close_matches(asked, answer.known, n=1, cutoff=CLOSE)
    advice = f"did you mean {near[0]}?" if near else f"known: {', '.join(answer.known)}"
    return f"{answer.error}\n{advice}"
