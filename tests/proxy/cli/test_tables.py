"""How sizes, times and columns look: as `ollama` writes them."""

import pytest

from proxy.cli.tables import ago, columns, processor, size, span, until


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 KB"),
        (4_661_224_676, "4.7 GB"),
        (9_960_000_000, "10.0 GB"),
        (25_757_220_864, "25 GB"),
        (3 * 10**12, "3 TB"),
    ],
)
def test_sizes(count: int | None, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("left_s", "text"),
    [
        (-1, "Stopping..."),
        (0.5, "Less than a second from now"),
        (1.5, "1 second from now"),
        (59, "59 seconds from now"),
        (60, "About a minute from now"),
        (299, "4 minutes from now"),
        (3600, "About an hour from now"),
        (47 * 3600, "47 hours from now"),
        (3 * 86400, "3 days from now"),
        (21 * 86400, "3 weeks from now"),
        (100 * 86400, "3 months from now"),
        (3 * 366 * 86400, "3 years from now"),
    ],
)
def test_expiry(left_s: float, text: str) -> None:
    assert until(1000.0 + left_s, 1000.0) == text


def test_no_expiry_and_past() -> None:
    assert until(None, 0.0) == "Forever"
    assert ago(None, 0.0) == "-"
    assert ago(0.0, 1e9) == "-"  # the start of Unix time, and Go's zero time: not known
    assert ago(-62135596800.0, 1e9) == "-"
    assert ago(1000.0, 8200.0) == "2 hours ago"
    assert ago(10.0, 0.0) == "Less than a second ago"  # clocks of two machines differ


@pytest.mark.parametrize(
    ("size_bytes", "gpu_bytes", "on_gpu", "text"),
    [
        (100, 100, True, "100% GPU"),
        (100, 0, True, "100% CPU"),
        (100, 75, True, "25%/75% CPU/GPU"),
        (100, 101, True, "Unknown"),
        (None, None, True, "GPU"),
        (100, None, False, "CPU"),
    ],
)
def test_processor(size_bytes: int | None, gpu_bytes: int | None, on_gpu: bool, text: str) -> None:
    assert processor(size_bytes, gpu_bytes, on_gpu=on_gpu) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.24, "4.2s"), (63, "1m 3s"), (7500, "2h 5m"), (3 * 86400 + 4 * 3600, "3d 4h")]
)
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_columns() -> None:
    assert columns(("A", "LONG"), [("xyz", "1"), ("", "2")]) == "A      LONG\nxyz    1\n       2\n"
    assert columns(("A", "B"), []) == "A    B\n"
    assert columns(("A",), [("x\x1b[31m\n",)]) == "A\nx?[31m?\n"
