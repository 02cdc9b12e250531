"""A backend's life as a table: what may happen in which state, and where it leads. Knows nothing of requests or time.

`TRANSITIONS` is total over the four states that an engine can be in by itself. Draining is not one of them: it is the
operator's wish, not the engine's condition, so it stands beside the table as a flag that survives failure and restart
(`DRAINING_AFTER`); a drained backend that dies and comes back is still drained until somebody undrains it.

One rule needs a count and is therefore not a row: `failures_until_down` failures in a row (missed probes or failed
attempts) make a suspect backend DOWN. It stays DOWN until a probe is answered: a probe is cheaper than a request.
"""

from enum import StrEnum

import msgspec

from scheduler.domain import Health


class Signal(StrEnum):
    """What moves a backend from one state to another."""

    STARTED = "started"  # its process was started, or an external one is looked at for the first time
    ANSWERED = "answered"  # a probe found it ready
    MISSED = "missed"  # a probe got no answer, or a bad one
    FAILED = "failed"  # an attempt failed before its first byte
    SUCCEEDED = "succeeded"  # an attempt got its first byte
    EXITED = "exited"  # its process ended, or its budget of failures is spent
    DRAIN = "drain"
    UNDRAIN = "undrain"


TRANSITIONS: dict[tuple[Health, Signal], Health] = {
    (Health.STARTING, Signal.STARTED): Health.STARTING,
    (Health.STARTING, Signal.ANSWERED): Health.READY,
    (Health.STARTING, Signal.MISSED): Health.STARTING,  # but one that never answers is down, see `after`
    (Health.STARTING, Signal.FAILED): Health.STARTING,  # a request of the process before
    (Health.STARTING, Signal.SUCCEEDED): Health.STARTING,  # likewise: only a probe says that the new one is ready
    (Health.STARTING, Signal.EXITED): Health.DOWN,
    (Health.READY, Signal.STARTED): Health.STARTING,
    (Health.READY, Signal.ANSWERED): Health.READY,
    (Health.READY, Signal.MISSED): Health.SUSPECT,
    (Health.READY, Signal.FAILED): Health.SUSPECT,
    (Health.READY, Signal.SUCCEEDED): Health.READY,
    (Health.READY, Signal.EXITED): Health.DOWN,
    (Health.SUSPECT, Signal.STARTED): Health.STARTING,
    (Health.SUSPECT, Signal.ANSWERED): Health.READY,  # what keeps a fast-failing engine away is its cool-down
    (Health.SUSPECT, Signal.MISSED): Health.SUSPECT,
    (Health.SUSPECT, Signal.FAILED): Health.SUSPECT,
    (Health.SUSPECT, Signal.SUCCEEDED): Health.READY,
    (Health.SUSPECT, Signal.EXITED): Health.DOWN,
    (Health.DOWN, Signal.STARTED): Health.STARTING,
    (Health.DOWN, Signal.ANSWERED): Health.READY,
    (Health.DOWN, Signal.MISSED): Health.DOWN,
    (Health.DOWN, Signal.FAILED): Health.DOWN,
    (Health.DOWN, Signal.SUCCEEDED): Health.DOWN,  # the last bytes of a dying engine
    (Health.DOWN, Signal.EXITED): Health.DOWN,
}

DRAINING_AFTER: dict[Signal, bool] = {Signal.DRAIN: True, Signal.UNDRAIN: False}


class Life(msgspec.Struct, frozen=True):
    """Where a backend stands in its life."""

    condition: Health = Health.STARTING
    """What the engine is by itself: a state of `TRANSITIONS`, never DRAINING."""
    draining: bool = False
    """The operator's wish; outlives failures and restarts."""
    failures: int = 0
    """Missed probes and failed attempts in a row."""

    @property
    def health(self) -> Health:
        """What to show and to filter by: a dead or starting engine is just that, drained or not."""
        return Health.DRAINING if self.draining and self.takes_requests else self.condition

    @property
    def takes_requests(self) -> bool:
        """Whether the engine by itself could take a request."""
        return self.condition is Health.READY or self.condition is Health.SUSPECT

    def after(self, signal: Signal, failures_until_down: int) -> "Life":
        """The life after a signal."""
        if signal in DRAINING_AFTER:
            return Life(self.condition, DRAINING_AFTER[signal], self.failures)
        condition = TRANSITIONS[self.condition, signal]
        counts = signal is Signal.MISSED or (signal is Signal.FAILED and condition is not Health.STARTING)
        failures = self.failures + 1 if counts else 0
        if condition in (Health.SUSPECT, Health.STARTING) and failures >= failures_until_down:
            condition = Health.DOWN
        return Life(condition, self.draining, failures)
