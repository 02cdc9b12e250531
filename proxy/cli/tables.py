"""Plain columns and the words of `ollama ps` for sizes and times. Owns how things look; asks nobody."""

import math
from collections.abc import Sequence


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], gap: int = 4) -> str:
    """Left-aligned columns without borders, as `ollama ps` prints them. Ends with a newline."""
    table = [list(header), *[[printable(cell) for cell in row] for row in rows]]
    widths = [max(len(row[index]) for row in table) for index in range(len(header))]
    lines = ((" " * gap).join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in table)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def printable(text: str) -> str:
    """Names and errors come from elsewhere: no control character of theirs may reach the terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def size(count: int | None) -> str:
    """Bytes as Ollama writes them (format.HumanBytes): decimal units, one decimal below ten."""
    if count is None:
        return "-"
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "KB")):
        if count >= unit:
            value = count / unit
            whole = value >= 10 or value == math.trunc(value)
            return f"{int(value)} {name}" if whole else f"{value:.1f} {name}"
    return f"{count} B"


def until(expires_unix_s: float | None, now_unix_s: float) -> str:
    """When a model is unloaded, in Ollama's words (format.HumanTime)."""
    if expires_unix_s is None:
        return "Forever"
    left_s = expires_unix_s - now_unix_s
    return "Stopping..." if left_s < 0 else f"{_about(left_s)} from now"


def ago(then_unix_s: float | None, now_unix_s: float) -> str:
    """A past moment in Ollama's words. Engines that do not know it tell None, or the start of some time."""
    if then_unix_s is None or then_unix_s <= 0:
        return "-"
    return f"{_about(max(0.0, now_unix_s - then_unix_s))} ago"


def _about(seconds: float) -> str:
    whole, minutes, hours = int(seconds), int(seconds / 60), int(seconds / 3600 + 0.5)
    if whole < 60:
        return "Less than a second" if whole < 1 else "1 second" if whole == 1 else f"{whole} seconds"
    if minutes < 60:
        return "About a minute" if minutes == 1 else f"{minutes} minutes"
    if hours < 48:
        return "About an hour" if hours == 1 else f"{hours} hours"
    for bound, unit, name in ((24 * 14, 24, "days"), (24 * 60, 168, "weeks"), (24 * 730, 720, "months")):
        if hours < bound:
            return f"{hours // unit} {name}"
    return f"{hours // 8760} years"


def processor(size_bytes: int | None, gpu_bytes: int | None, *, on_gpu: bool) -> str:
    """Where a model's memory is, in Ollama's words; engines that do not tell are taken at their binding."""
    if size_bytes is None or gpu_bytes is None:
        return "GPU" if on_gpu else "CPU"
    if gpu_bytes == 0:
        return "100% CPU"
    if gpu_bytes == size_bytes:
        return "100% GPU"
    if gpu_bytes > size_bytes:
        return "Unknown"
    cpu_percent = int((size_bytes - gpu_bytes) / size_bytes * 100 + 0.5)
    return f"{cpu_percent}%/{100 - cpu_percent}% CPU/GPU"


def span(seconds: float) -> str:
    """A duration with two units: `3d 4h`, `2h 5m`, `1m 3s`, `4.2s`."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    for big, small, names in ((86400, 3600, "dh"), (3600, 60, "hm"), (60, 1, "ms")):
        if whole >= big:
            return f"{whole // big}{names[0]} {whole % big // small}{names[1]}"
    return f"{whole}s"
