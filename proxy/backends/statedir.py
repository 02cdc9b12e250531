"""Owns the places in the state directory that backends use: sockets, keys, logs, pid files, and who may use them.

Nothing here starts or asks an engine.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import socket
import stat
import tempfile
import threading
from pathlib import Path

import msgspec
import structlog

from proxy.backends.orphans import ProcessRecord

log = structlog.get_logger("slotgate.statedir")

SOCKET_PATH_BYTES = 107
"""Longest path of a unix socket: sun_path has 108 bytes with its closing zero, see unix(7)."""


class StateDirError(Exception):
    """The state directory cannot be used; the message says why and what to do."""


class PidFile(msgspec.Struct, frozen=True):
    """What a run of a backend left on disk so that a later run can end it."""

    keeper: ProcessRecord | None = None
    engine: ProcessRecord | None = None
    epoch: int = 0
    boot: str = ""
    """Which boot of the machine its processes belong to: numbers and start times begin anew with each."""


class StateDir:
    """Paths of one slotgate's backends. `open` must have been called before anything is started from it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        self._id: str | None = None
        self._ports: dict[str, int] = {}
        self._ports_lock = threading.Lock()

    def open(self) -> None:
        """Create the directories, take the lock, read or make the id.

        Raises:
            StateDirError: not writable, or another slotgate has it in use.
        """
        self.path = self.path.absolute()
        self.make_directories()
        try:
            lock = os.open(self.path / "backends.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateDirError(f"cannot use the state directory {self.path}: {error.strerror or error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise StateDirError(
                f"another slotgate uses the state directory {self.path}; stop it, or give this one another state_dir"
            ) from None
        self._lock = lock
        try:
            self._id = self._read_or_make_id()
        except OSError as error:
            self.close()
            raise StateDirError(f"cannot use the state directory {self.path}: {error.strerror or error}") from error

    def make_directories(self) -> None:
        """Make what is missing of the directories; those that are there stay as they are.

        Raises:
            StateDirError: one cannot be made.
        """
        try:
            for directory in ("logs", "keys", "run", "slots"):
                (self.path / directory).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StateDirError(f"cannot use the state directory {self.path}: {error.strerror or error}") from error

    def _read_or_make_id(self) -> str:
        path = self.path / "id"
        with contextlib.suppress(FileNotFoundError):
            if found := path.read_text().strip():
                return found
        made = secrets.token_hex(8)
        path.write_text(f"{made}\n")
        return made

    def close(self) -> None:
        """Let another slotgate use it. The kernel does the same for a killed one."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def id(self) -> str:
        """Names this directory in the environment of every engine; survives restarts."""
        if self._id is None:
            raise RuntimeError("the state directory is not open")
        return self._id

    def marker(self, name: str = "") -> str:
        """The environment marker of a backend; without a name the prefix of all."""
        return f"{self.id}/{name}"

    def log_path(self, name: str) -> Path:
        """Where a backend's output goes."""
        return self.path / "logs" / f"{name}.log"

    def slots_path(self, name: str) -> Path:
        """A directory for saved slots of a backend."""
        path = self.path / "slots" / name
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def socket_path(self, name: str) -> Path:
        """A path that fits into a unix socket address: in the state directory, else in a short private directory.

        Raises:
            StateDirError: the short directory exists and is not ours alone.
        """
        path = self.path / "run" / f"{name}.sock"
        if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
            return path
        root = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        directory = Path(root) / f"slotgate-{os.getuid()}-{self.id[:8]}"
        directory.mkdir(mode=0o700, exist_ok=True)
        facts = directory.lstat()
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) != 0o700:
            raise StateDirError(f"{directory} must be a directory of this user with mode 0700; remove it")
        path = directory / f"{name}.sock"
        if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
            return path
        return directory / f"{hashlib.sha256(name.encode()).hexdigest()[:12]}.sock"

    def key_path(self, name: str) -> Path:
        """Where the API key of a backend is kept."""
        return self.path / "keys" / f"{name}.key"

    def write_key(self, name: str) -> tuple[Path, str]:
        """Make a new API key; the file is readable by this user only. Where none can be written, the last one stays.

        Raises:
            StateDirError: none can be written, and there is no last one.
        """
        key = secrets.token_urlsafe(32)
        path = self.key_path(name)
        new = path.with_name(f"{path.name}.new")
        try:
            new.unlink(missing_ok=True)  # an older file may have another mode
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(f"{key}\n")
            new.replace(path)
        except OSError as error:  # a full disk is no reason to leave an engine down
            if last := _read_private(path):
                log.warning("no new key, the last one stays", backend=name, error=str(error))
                return path, last
            reason = error.strerror or str(error)
            raise StateDirError(f"cannot write {new}: {reason}; free space there or correct its owner") from error
        return path, key

    def read_pid_file(self, name: str) -> PidFile:
        """What the last run of a backend left; empty if nothing readable."""
        try:
            found = msgspec.json.decode((self.path / "run" / f"{name}.pid").read_bytes(), type=PidFile)
        except (OSError, msgspec.MsgspecError):
            return PidFile()
        return found if found.boot == boot_id() else PidFile(epoch=found.epoch)

    def write_pid_file(self, name: str, content: PidFile) -> None:
        """Replace a backend's pid file; it is never half written."""
        path = self.path / "run" / f"{name}.pid"
        temporary = path.with_suffix(".pid.new")
        temporary.write_bytes(msgspec.json.encode(msgspec.structs.replace(content, boot=boot_id())))
        temporary.replace(path)

    def pid_files(self) -> dict[str, PidFile]:
        """All pid files, by backend name."""
        return {path.stem: self.read_pid_file(path.stem) for path in sorted((self.path / "run").glob("*.pid"))}

    def pick_port(self, name: str, first: int) -> int:
        """A loopback port for a backend: the first free one. Safe in threads.

        Raises:
            StateDirError: none is free.
        """
        with self._ports_lock:
            taken = frozenset(port for owner, port in self._ports.items() if owner != name)
            self._ports[name] = free_port(first, taken)
            return self._ports[name]


def _read_private(path: Path) -> str:
    """What a file says that only this user can read; empty if there is no such file."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        facts = path.stat()
        if facts.st_uid == os.getuid() and stat.S_IMODE(facts.st_mode) == 0o600:
            return path.read_text().strip()
    return ""


def engine_key(path: str) -> str:
    """The API key that `write_key` left for other processes of this user; empty: there is none that it wrote."""
    found = _read_private(Path(path)) if re.fullmatch(r"/.*/keys/[^/]+\.key", path) else ""
    return found if re.fullmatch(r"[\w-]{43}", found, re.ASCII) else ""


def boot_id() -> str:
    """What this machine is known by until it is started again; empty: it does not tell."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def free_port(first: int, taken: frozenset[int] = frozenset()) -> int:
    """The first port from `first` on that nobody listens to on 127.0.0.1 and that is not in `taken`.

    Raises:
        StateDirError: none of the next thousand ports is free.
    """
    for port in range(first, min(first + 1000, 65536)):
        if port in taken:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno not in {errno.EADDRINUSE, errno.EACCES}:
                    raise
            else:
                return port
    raise StateDirError(f"no free port on 127.0.0.1 from {first} on; set first_port")
