"""What goes over the line comes out as it was."""

import pytest

from proxy.workers.orders import (
    Accept,
    Alive,
    FromWorker,
    Leaving,
    Orders,
    Ready,
    Reload,
    Retire,
    ToWorker,
    from_worker,
    line,
    to_worker,
)


@pytest.mark.parametrize(
    "message",
    [
        Orders(1, {"workers": 2, "backends": [{"url": "http://a"}]}, "/s", "/s/1.sock", [[3, 4], [5]], 0, ["gpu0"]),
        Accept([1, 2]),
        Reload({"limits": {"drain_s": 1.0}}),
        Retire(3600.0),
    ],
)
def test_to_a_worker(message: ToWorker) -> None:
    text = line(message)
    assert text.endswith(b"\n")
    assert text.count(b"\n") == 1
    assert to_worker.decode(text) == message


@pytest.mark.parametrize("message", [Ready(warm=True), Alive(1, 2, 3, 4, 5), Leaving()])
def test_from_a_worker(message: FromWorker) -> None:
    assert from_worker.decode(line(message)) == message
