"""Two boxes on one machine: network namespaces with a cable between them. Root is not always needed for that."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator

import pytest

ADDRESSES = {"a": "10.77.5.1", "b": "10.77.5.2"}


class Boxes:
    """Box `a` and box `b`. What runs in one reaches the other's address, and not its loopback."""

    def __init__(self, holders: dict[str, "subprocess.Popen[bytes]"]) -> None:
        self._holders = holders

    def inside(self, box: str) -> list[str]:
        """What to put before a command so that it runs in a box; it is that program itself then, with its pid."""
        return ["nsenter", f"--target={self._holders[box].pid}", "--user", "--net", "--preserve-credentials"]

    def run(self, box: str, *command: str) -> str:
        """Run a short command in a box; its output."""
        done = subprocess.run([*self.inside(box), *command], check=False, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def cut(self) -> None:
        """Pull the cable: packets are lost, nobody is told."""
        self._cable("down")

    def heal(self) -> None:
        """Plug it in again."""
        self._cable("up")

    def _cable(self, state: str) -> None:
        # At a third place between the two: to the boxes themselves their end looks as before.
        self.run("between", "ip", "link", "set", "to-b", state)

    def wire(self) -> None:
        """Lay the cable: box a - bridge - box b."""
        between = str(self._holders["between"].pid)
        self.run("between", "ip", "link", "add", "bridge0", "type", "bridge")
        self.run("between", "ip", "link", "set", "bridge0", "up")
        for box, address in ADDRESSES.items():
            self.run("between", "ip", "link", "set", "lo", "up")
            self.run(box, "ip", "link", "set", "lo", "up")
            self.run(box, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", f"to-{box}", "netns", between)
            self.run(box, "ip", "address", "add", f"{address}/24", "dev", "eth0")
            self.run("between", "ip", "link", "set", f"to-{box}", "master", "bridge0", "up")
            self.run(box, "ip", "link", "set", "eth0", "up")
            self.run(box, "ip", "route", "add", "default", "dev", "eth0")


@contextlib.contextmanager
def two_boxes() -> Iterator[Boxes]:
    """Two boxes with a network of their own; skips where this machine does not permit that."""
    for program in ("unshare", "nsenter", "ip"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (apt install util-linux iproute2)")
    holders: dict[str, subprocess.Popen[bytes]] = {}
    try:
        holders["between"] = _hold(["unshare", "--user", "--map-root-user", "--net"])
        first = Boxes(holders).inside("between")[:-2]  # its user namespace: who made it may join networks in it
        for box in ADDRESSES:
            holders[box] = _hold([*first, "--preserve-credentials", "unshare", "--net"])
        boxes = Boxes(holders)
        try:
            boxes.wire()
        except OSError as error:
            pytest.skip(f"network namespaces cannot be joined here: {error}")
        yield boxes
    finally:
        for holder in holders.values():
            holder.kill()
            holder.wait()


def _hold(command: list[str]) -> "subprocess.Popen[bytes]":
    """A process that keeps a namespace; it says when it is in it."""
    holder = subprocess.Popen(
        [*command, "sh", "-c", "echo here; exec sleep 3600"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None
    if holder.stdout.readline() != b"here\n":
        assert holder.stderr is not None
        why = holder.stderr.read().decode().strip()
        holder.wait()
        pytest.skip(f"no network namespaces here: {why}")
    return holder
