import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.emulated.ollama_names import is_cloud, name_of_path, read_name


@pytest.mark.parametrize(
    ("text", "short", "full"),
    [
        ("llama3", "llama3:latest", "registry.ollama.ai/library/llama3:latest"),
        ("llama3:8b", "llama3:8b", "registry.ollama.ai/library/llama3:8b"),
        ("me/llama3", "me/llama3:latest", "registry.ollama.ai/me/llama3:latest"),
        ("registry.ollama.ai/library/a:b", "a:b", "registry.ollama.ai/library/a:b"),
        ("host:5000/me/a", "host:5000/me/a:latest", "host:5000/me/a:latest"),
        ("hf.co/me/a:Q4", "hf.co/me/a:Q4", "hf.co/me/a:Q4"),
    ],
)
def test_names_are_completed_and_shortened(text: str, short: str, full: str) -> None:
    name = read_name(text)
    assert name is not None
    assert (name.short, name.full) == (short, full)
    assert name_of_path(name.path) == name


@pytest.mark.parametrize("text", ["", ":", "a:", "a b", "../etc", "a/b/c/d", "a/../b", "/a", "a//b", "é"])
def test_what_is_no_name(text: str) -> None:
    assert read_name(text) is None


@given(st.text(max_size=30))
def test_a_name_never_leaves_the_directory_of_manifests(text: str) -> None:
    name = read_name(text)
    if name is not None:
        assert ".." not in name.path.split("/")
        assert len(name.path.split("/")) == 5
        assert read_name(name.short) == name


def test_paths_of_other_files_are_no_names() -> None:
    assert name_of_path("manifests/registry.ollama.ai/library/a") is None
    assert name_of_path("blobs/a/b/c/d") is None


def test_cloud_models_are_known_by_their_tag() -> None:
    assert [is_cloud(text) for text in ("a:cloud", "a:120b-cloud", "me/a:cloud", "a", "cloud", "h:1/cloud/a")] == [
        *(True, True, True),
        *(False, False, False),
    ]
