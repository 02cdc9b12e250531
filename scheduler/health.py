"""A backend's life as a table: what may happen in which state, and where it leads."""

from enum import StrEnum


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
