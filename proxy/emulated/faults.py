"""Faults that an emulated engine can be told to have. Owns their rules and counting; must not know any API's shapes."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec


class Kind(StrEnum):
    """What goes wrong."""

    REFUSE = "refuse"  # the port is closed
    RESET_NEW = "reset-new"  # connections are accepted and reset at once
    RESET = "reset"  # the connection is reset once the request was read, before any byte of an answer
    HANG = "hang"  # the request is read and never answered
    LOADING = "loading"  # 503, as while a model loads
    ERROR = "error"  # 500
    DIE = "die"  # the connection is cut after some tokens
    CHILD_DIES = "child-dies"  # Ollama: the process that computes is killed after some tokens
    UNTERMINATED = "unterminated"  # the stream ends cleanly after some tokens, without its end mark
    SLOW = "slow"  # every step takes longer
    FREEZE = "freeze"  # answers, but computes nothing
    KILL = "kill"  # the whole process dies
    LOAD_FAILS = "load-fails"  # Ollama: a load ends with an error
    PULL_FAILS = "pull-fails"  # Ollama: a download ends after some bytes


_SWITCHES = frozenset({Kind.REFUSE, Kind.RESET_NEW, Kind.SLOW, Kind.FREEZE, Kind.KILL})
"""Faults of the engine as a whole; the others befall single requests or loads."""
LOAD_FAILED = (
    "model failed to load, this may be due to resource limitations or an internal error, "
    "check ollama server logs for details"
)
"""Ollama's words where it knows none of its own."""


class Fault(msgspec.Struct):
    """One fault. One of single requests befalls the next `times` that match; the others last until cleared."""

    kind: Kind
    times: int | None = None
    """How many requests it befalls; None: all until cleared."""
    path: str = ""
    """Only requests whose path begins so (`/`: every request); empty: only those that take a slot, not probes."""
    after_tokens: int = 0
    """For faults in the middle of an answer: tokens that still come."""
    after_bytes: int = 0
    """For `pull-fails`: bytes of each blob that still come."""
    factor: float = 1.0
    """For `slow`: steps take this many times longer."""
    extra_s: float = 0.0
    """For `slow`: and this many seconds more; for the others: wait so long first."""
    message: str = "emulated fault"
    """For `error`, `load-fails` and `pull-fails`: what the engine says."""
    befell: int = 0
    """How many requests it has befallen so far."""


class Faults:
    """The faults of one engine.

    Args:
        apply: called after every change with the faults in force, so that the engine can close its port, slow down, or
            die; the faults of single requests are asked for with `take`.
    """

    def __init__(self, apply: Callable[[list[Fault]], None]) -> None:
        self._apply = apply
        self.faults: list[Fault] = []

    def add(self, kind: Kind | str, **values: Any) -> Fault:
        """Add a fault; see `Fault` for the values.

        Raises:
            ValueError: no such kind.
            TypeError: no such value.
        """
        if Kind(kind) is Kind.LOAD_FAILS:
            values = {"message": LOAD_FAILED} | values
        if Kind(kind) is Kind.PULL_FAILS:
            values = {"path": "/api/pull"} | values
        fault = Fault(kind=Kind(kind), **values)
        self.faults.append(fault)
        self._apply(self.faults)
        return fault

    def clear(self, kind: Kind | str | None = None) -> None:
        """Remove all faults, or all of one kind."""
        self.faults = [fault for fault in self.faults if kind is not None and fault.kind is not Kind(kind)]
        self._apply(self.faults)

    def take(self, path: str, *, inference: bool) -> Fault | None:
        """The fault that befalls a request to this path, counted; None: it is answered as it should be."""
        for fault in self.faults:
            spent = fault.times is not None and fault.befell >= fault.times
            meant = path.startswith(fault.path) if fault.path else inference
            if fault.kind not in _SWITCHES and fault.kind is not Kind.LOAD_FAILS and not spent and meant:
                fault.befell += 1
                return fault
        return None

    def load_fails(self) -> str | None:
        """What a load that is about to succeed ends with instead, counted; None: it succeeds."""
        for fault in self.faults:
            if fault.kind is Kind.LOAD_FAILS and (fault.times is None or fault.befell < fault.times):
                fault.befell += 1
                return fault.message
        return None

    def active(self, kind: Kind) -> Fault | None:
        """The fault of that kind in force, if any."""
        return next((fault for fault in self.faults if fault.kind is kind), None)
