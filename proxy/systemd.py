"""Talks to systemd as sd_notify(3) and sd_listen_fds(3) say. Owns that protocol only; without systemd it does nothing.

https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html calls the protocol stable.
"""

import asyncio
import os
import socket
import time
from collections.abc import MutableMapping

FIRST_INHERITED_FD = 3


class Notifier:
    """Tells systemd how the service is. Every message is one datagram, sent without waiting."""

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        """Take the socket's name and the watchdog's period out of the environment, so that engines do not inherit them.

        WATCHDOG_USEC counts only for the process that WATCHDOG_PID names.
        """
        address = environ.pop("NOTIFY_SOCKET", "")
        period_us = environ.pop("WATCHDOG_USEC", "")
        watched_pid = environ.pop("WATCHDOG_PID", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) if address else None
        self.watchdog_interval_s: float | None = None
        """Seconds between pings: half of what systemd allows; None if it does not watch."""
        if self._socket is not None:
            self._socket.setblocking(False)
            if period_us.isdecimal() and int(period_us) > 0 and watched_pid in {"", str(os.getpid())}:
                self.watchdog_interval_s = int(period_us) / 2e6

    def ready(self, status: str = "") -> bool:
        """The service serves; also ends a reload."""
        return self._send("READY=1", status)

    def stopping(self, status: str = "") -> bool:
        """The service drains and ends."""
        return self._send("STOPPING=1", status)

    def reloading(self, status: str = "") -> bool:
        """A reload begins; `ready` ends it. Type=notify-reload wants the clock that began it."""
        return self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}", status)

    def status(self, text: str) -> bool:
        """One line for `systemctl status`."""
        return self._send("", text)

    def extend_timeout(self, seconds: float) -> bool:
        """Ask for more time to start, reload or stop."""
        return self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}", "")

    async def keep_watchdog(self) -> None:
        """Ping for as long as the event loop runs; returns at once where systemd does not watch."""
        while self.watchdog_interval_s is not None:
            self._send("WATCHDOG=1", "")
            await asyncio.sleep(self.watchdog_interval_s)

    def close(self) -> None:
        """No message is sent after this."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, state: str, status: str) -> bool:
        """Whether systemd took the message. A full or closed socket must not stop the service."""
        if self._socket is None:
            return False
        lines = [line for line in (state, f"STATUS={' '.join(status.split())}" if status else "") if line]
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return False
        return True


def inherited_sockets(environ: MutableMapping[str, str] = os.environ) -> list[socket.socket]:
    """Listening sockets that systemd opened for this process (a .socket unit), taken out of the environment."""
    count, pid = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_PID", "")
    environ.pop("LISTEN_FDNAMES", None)
    if not count.isdecimal() or pid != str(os.getpid()):
        return []
    sockets = []
    for fd in range(FIRST_INHERITED_FD, FIRST_INHERITED_FD + int(count)):
        os.set_inheritable(fd, False)
        inherited = socket.socket(fileno=fd)
        inherited.setblocking(False)
        sockets.append(inherited)
    return sockets
