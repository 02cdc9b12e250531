"""How log lines look and where they go. Owns the structlog set-up; knows nothing of what is logged."""

import io
import logging
import os
import sys
from collections.abc import MutableMapping
from typing import Any, Literal

import orjson
import structlog
from structlog.processors import ExceptionRenderer, JSONRenderer
from structlog.tracebacks import ExceptionDictTransformer

from proxy.config import LogConfig
from proxy.telemetry.output import Output

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Lines:
    """What structlog calls a logger: takes rendered lines, whatever their level."""

    def __init__(self, output: Output, name: str = "slotgate") -> None:
        self._output = output
        self.name = name

    def msg(self, line: str | bytes) -> None:
        """Write one rendered line."""
        self._output.write((line.encode("utf-8", "backslashreplace") if isinstance(line, str) else line) + b"\n")

    debug = info = warning = error = critical = exception = log = msg


class _Standard(logging.Handler):
    """Hands what libraries log through the standard library to the same output."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            log = structlog.get_logger(record.name)
            level = max(logging.DEBUG, min(logging.CRITICAL, record.levelno // 10 * 10))  # structlog knows only these
            log.log(level, record.getMessage(), exc_info=record.exc_info)
        except Exception:  # noqa: BLE001 - a record that cannot be formatted must not break who logged it
            self.handleError(record)


def log_format(config: LogConfig, *, on_terminal: bool) -> Literal["json", "console"]:
    """The format in use: `auto` is for people on a terminal, else for programs."""
    if config.format == "auto":
        return "console" if on_terminal else "json"
    return config.format


def configure(config: LogConfig, output: Output, *, format_: Literal["json", "console"], colors: bool = False) -> None:
    """Set up structlog and the standard library's logging once per process; all lines go to `output`."""
    structlog.reset_defaults()
    timestamp = structlog.processors.TimeStamper(fmt="iso", utc=format_ == "json", key="time")
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _name_of_logger,
        timestamp,
        structlog.processors.StackInfoRenderer(),
    ]
    if format_ == "json":
        # Without the values of local variables: they hold keys, passwords and prompts.
        tracebacks = ExceptionRenderer(ExceptionDictTransformer(show_locals=False))
        last: list[Any] = [tracebacks, JSONRenderer(_json)]
    else:
        plain = structlog.dev.plain_traceback  # likewise without local variables
        last = [
            structlog.dev.ConsoleRenderer(
                colors=colors, timestamp_key="time", pad_event_to=28, exception_formatter=plain
            )
        ]
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[config.level]),
        logger_factory=lambda *args: Lines(output, str(args[0]) if args else "slotgate"),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers = [_Standard()]
    # Libraries are noisier than we are: their warnings matter, their notes do not, unless everything is asked for.
    root.setLevel(logging.DEBUG if config.level == "debug" else max(LEVELS[config.level], logging.WARNING))
    logging.getLogger("asyncio").setLevel(max(LEVELS[config.level], logging.WARNING))
    logging.raiseExceptions = False


def standard_output() -> tuple[Output, bool, bool]:
    """An `Output` on this process's stdout, whether that is a terminal, and whether it should be coloured."""
    try:
        fd = sys.stdout.fileno()
    except (AttributeError, OSError, io.UnsupportedOperation):
        fd = 1
    on_terminal = os.isatty(fd)
    colors = on_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Output(fd), on_terminal, colors


def _name_of_logger(logger: Any, _method: str, event_dict: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    event_dict.setdefault("logger", getattr(logger, "name", "slotgate"))
    return event_dict


def _json(event: Any, default: Any = None, **_: Any) -> bytes:
    del default  # structlog's own fallback tells less than repr
    ordered = {key: event.pop(key) for key in ("time", "level", "event", "logger") if key in event} | event
    return orjson.dumps(ordered, default=repr, option=orjson.OPT_NON_STR_KEYS)
