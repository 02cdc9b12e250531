"""The file-size ceiling: a source file that grows beyond it wants to be two."""

import sys
from pathlib import Path

CEILING = 400
ROOT = Path(__file__).parent.parent


def too_long() -> list[tuple[str, int]]:
    """Python files of the product and the tests with more lines than the ceiling."""
    found = []
    for top in ("proxy", "scheduler", "tests"):
        for path in sorted((ROOT / top).rglob("*.py")):
            lines = len(path.read_text().splitlines())
            if lines > CEILING:
                found.append((str(path.relative_to(ROOT)), lines))
    return found


if __name__ == "__main__":
    for name, lines in too_long():
        print(f"{name}: {lines} lines, the ceiling is {CEILING}", file=sys.stderr)
    sys.exit(bool(too_long()))
