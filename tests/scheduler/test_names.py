import pytest

from scheduler.names import canonical, short


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama3", "llama3:latest"),
        ("llama3:latest", "llama3:latest"),
        (" LLama3:8B ", "llama3:8b"),
        ("library/llama3", "llama3:latest"),
        ("registry.ollama.ai/library/llama3:70b", "llama3:70b"),
        ("hf.co/bartowski/Llama-3.2-1B", "hf.co/bartowski/llama-3.2-1b:latest"),
        ("localhost:5000/me/model", "localhost:5000/me/model:latest"),
        ("gpt-oss:20b:local", "gpt-oss:20b"),
        ("gpt-oss:Local", "gpt-oss:latest"),
        ("gpt-oss:20b-cloud", "gpt-oss:20b-cloud"),
    ],
)
def test_canonical(name: str, expected: str) -> None:
    assert canonical(name) == expected
    assert canonical(expected) == expected


def test_short() -> None:
    assert short("LLama3") == "llama3"
    assert short("llama3:8b") == "llama3:8b"
