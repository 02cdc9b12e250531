"""One process of slotgate, from its configuration to its exit status: its log, its loop, what its end is told as.

The main process, the only one, or a worker: what it does is `app`'s business.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import uvloop

from proxy import garbage
from proxy.app import App
from proxy.backends.launch import LaunchError
from proxy.backends.statedir import StateDirError
from proxy.config import Config, Paths, resolve
from proxy.config_sources import LoadedConfig
from proxy.listener import ListenError
from proxy.store import StoreStartError
from proxy.telemetry.access_log import AccessLog
from proxy.telemetry.logging import configure, log_format, standard_output
from proxy.telemetry.shared_output import SharedOutput
from proxy.workers.post import OrdersMissing, Post
from proxy.workers.worker import WorkerError

START_ERRORS = (
    ListenError, StoreStartError, LaunchError, StateDirError, WorkerError, TimeoutError, OSError, ValueError,
)  # fmt: skip
"""What may be wrong with the machine or the configuration at start; everything else is a bug and gets its traceback."""


def run(loaded: LoadedConfig, reload: Callable[[], LoadedConfig]) -> int:
    """Serve until a signal; returns the process's exit status. `reload` finds the configuration anew, for SIGHUP."""
    return _run(loaded.config, resolve(loaded.config, os.environ), reload, None)


def run_worker(channel: int) -> int:
    """Serve as a worker; the main process, which started this one, is behind the channel."""
    try:
        post = Post(socket.socket(fileno=channel))
    except OrdersMissing as error:
        sys.stderr.write(f"slotgate: worker: {error}\n")
        return 1
    orders = post.orders
    config = Config.model_validate(orders.config)
    paths = Paths(state_dir=Path(orders.state_dir), admin_socket=Path(orders.admin_socket))
    return _run(config, paths, lambda: LoadedConfig(config, {}), post)


def _run(config: Config, paths: Paths, reload: Callable[[], LoadedConfig], post: Post | None) -> int:
    garbage.settle()
    output, on_terminal, colors = standard_output()
    form = log_format(config.log, on_terminal=on_terminal)
    if config.workers > 1:
        output.close()
        output = SharedOutput(output.fd, post.orders.number if post is not None else None, form)
    configure(config.log, output, format_=form, colors=colors)
    access_log = AccessLog(output, form) if config.log.requests else None
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(App(config, paths, access_log, reload, post).serve())
    except START_ERRORS as error:
        output.close()
        sys.stderr.write(f"slotgate: {error}\n")
        return 1
    finally:
        output.close()
    return 0
