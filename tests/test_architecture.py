"""The promises that the tree makes about itself: documents that name what exists, tests beside sources, file sizes."""

import re
from pathlib import Path

import pytest

from tests.file_sizes import too_long

ROOT = Path(__file__).parent.parent
SOURCES = sorted(path.relative_to(ROOT) for top in ("proxy", "scheduler") for path in (ROOT / top).rglob("*.py"))
DOCUMENTS = sorted(path for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
WITHOUT_TEST_OF_ITS_OWN = {
    "scheduler/domain.py": "structs without behaviour",
    "scheduler/events.py": "structs without behaviour",
    "scheduler/effects.py": "structs without behaviour",
    "scheduler/case.py": "structs without behaviour",
    "proxy/__main__.py": "every test that starts `python -m proxy` runs it",
    "proxy/emulated/__main__.py": "every test that starts `python -m proxy.emulated` runs it",
}


def test_no_file_is_too_long() -> None:
    assert too_long() == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_work(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", document.read_text())
    broken = [link for link in links if not (document.parent / link).exists()]

    assert broken == []


def test_paths_that_the_architecture_names_exist() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`((?:proxy|scheduler|deploy|tests|docs)/[\w./-]*)`", text))

    assert named, "the codemap names paths"
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def test_the_architecture_names_every_part() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    parts = {str(path) for path in SOURCES if len(path.parts) == 2 and path.name not in {"__init__.py", "__main__.py"}}
    parts |= {f"{path.parent}/" for path in SOURCES if len(path.parts) == 3}

    assert sorted(part for part in parts if f"`{part}`" not in text) == []


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_every_source_file_has_its_test_file(source: Path) -> None:
    if source.name == "__init__.py" or str(source) in WITHOUT_TEST_OF_ITS_OWN:
        return
    assert (ROOT / "tests" / source.parent / f"test_{source.name}").exists()


def test_exceptions_are_still_needed() -> None:
    assert sorted(path for path in WITHOUT_TEST_OF_ITS_OWN if not (ROOT / path).exists()) == []
