"""The processes of a benchmark: started on their CPUs, measured from /proc, stopped by their ids."""

import contextlib
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
CPUS = sorted(os.sched_getaffinity(0))
PROXY_CPU = CPUS[0]
LOAD_CPU = CPUS[-1]
"""Engine and clients; the same as the proxy's where there is only one."""

NGINX_MISSING = """\
nginx is needed to compare with, and was not found on PATH or in /usr/sbin.
How to fix: sudo apt-get install nginx-light (it need not be running; the benchmark starts its own)."""

NGINX_CONFIG = """\
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log;
worker_rlimit_nofile 65536;
events {{ worker_connections 32768; }}
http {{
  access_log off; client_body_buffer_size 16m; client_max_body_size 64m;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  keepalive_requests 1000000; keepalive_timeout 75s; tcp_nodelay on;
  upstream engine {{ least_conn; {servers} keepalive 256; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_request_buffering on; proxy_read_timeout 600s;
      {location}
    }}
  }}
}}
"""

SLOTGATE_CONFIG = """\
listen = "127.0.0.1:{port}"
state_dir = "{folder}/slotgate"
[limits]
max_waiting = 10000
[log]
format = "json"
requests = true
[[backends]]
name = "bench"
url = "{engine}"
engine = "ollama"
slots = 8192
running_limit = 8192
"""


class Missing(Exception):
    """Something that the benchmark needs is not there."""


class Process:
    """One started process and what it has used."""

    def __init__(self, name: str, command: list[str], cpus: set[int], folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if "tests.bench" in " ".join(command) else log,
                stderr=log,
                cwd=ROOT,
                preexec_fn=lambda: os.sched_setaffinity(0, cpus),  # noqa: PLW1509 - single-threaded here
            )
        self.pid = self._popen.pid
        self.port = 0

    def read_port(self) -> int:
        """The port that our own processes print."""
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            raise Missing(f"{self.name} did not start:\n{self.log.read_text()[-2000:]}")
        self.port = int(line)
        return self.port

    def listen(self, port: int, timeout_s: float = 30.0) -> None:
        """Wait until something listens on the port."""
        self.port = port
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._popen.poll() is not None:
                break
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            time.sleep(0.05)
        raise Missing(f"{self.name} does not listen on port {port}:\n{self.log.read_text()[-2000:]}")

    def children(self) -> list[int]:
        """Its processes, itself left out."""
        found: list[int] = []
        queue = [self.pid]
        while queue:
            for path in Path(f"/proc/{queue.pop()}/task").glob("*/children"):
                new = [int(each) for each in path.read_text().split()]
                found += new
                queue += new
        return found

    def stop(self) -> None:
        if self._popen.stdin is not None:
            self._popen.stdin.close()
        self._popen.terminate()
        try:
            self._popen.wait(10)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()


def cpu_s(pids: list[int]) -> float:
    """CPU seconds that all threads of these processes have used, to the nanosecond (/proc/*/schedstat)."""
    total = 0
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                total += int(path.read_text().split()[0])
    return total / 1e9


def pss_bytes(pids: list[int]) -> int:
    """Memory that would be free without these processes (proportional set size)."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def allow_many_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))


def start_engine(folder: Path) -> tuple[Process, Path]:
    unix = folder / "engine.sock"
    engine = Process("engine", [sys.executable, "-m", "tests.bench.engine", "--unix", str(unix)], {LOAD_CPU}, folder)
    engine.read_port()
    return engine, unix


def start_nginx(folder: Path, *engines: str, location: str = "") -> Process:
    """nginx in front of engines, with least_conn; `location`: more directives for all paths."""
    binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/local/nginx/sbin")
    if binary is None:
        raise Missing(NGINX_MISSING)
    port = free_port()
    config = folder / "nginx.conf"
    servers = " ".join(f"server {each};" for each in engines)
    config.write_text(NGINX_CONFIG.format(folder=folder, servers=servers, port=port, location=location))
    nginx = Process("nginx", [binary, "-p", str(folder), "-c", str(config)], {PROXY_CPU}, folder)
    nginx.listen(port)
    return nginx


def start_slotgate(folder: Path, engine: str) -> Process:
    port = free_port()
    return serve(folder, port, SLOTGATE_CONFIG.format(folder=folder, engine=engine, port=port))


def serve(folder: Path, port: int, text: str) -> Process:
    """slotgate with a configuration that makes it listen on a port."""
    config = folder / "slotgate.toml"
    config.write_text(text)
    proxy = Process("slotgate", [sys.executable, "-m", "proxy", "serve", "--config", str(config)], {PROXY_CPU}, folder)
    proxy.listen(port)
    return proxy


def start_bare(name: str, folder: Path, engine: str) -> Process:
    proxy = Process(name, [sys.executable, "-m", "tests.bench.bare", "--backend", engine], {PROXY_CPU}, folder)
    proxy.read_port()
    return proxy
