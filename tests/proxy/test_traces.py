"""Small files in the three published formats become clients, and bad ones a message that says where."""

import json
from pathlib import Path

import pytest

from proxy.traces import LONGEST_TOKENS, Trace, TraceError, rate_of, sessions


def mooncake(folder: Path, *rows: dict[str, object]) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def row(at_ms: float, tokens: int, *names: int, answered: int = 10) -> dict[str, object]:
    return {"timestamp": at_ms, "input_length": tokens, "output_length": answered, "hash_ids": names}


def azure(folder: Path, *rows: str) -> Path:
    path = folder / "trace.csv"
    path.write_text("\r\n".join(("TIMESTAMP,ContextTokens,GeneratedTokens", *rows)))  # as published: no last newline
    return path


def text_row(at_us: int, asked: str, session: str = "a", answered: str = "so be it") -> dict[str, object]:
    return {"timestamp": at_us, "input": asked, "output": answered, "session_id": session}


def test_mooncake(tmp_path: Path) -> None:
    path = mooncake(
        tmp_path, row(0, 1000, 1, 2), row(3000, 700, 1, 5), row(6000, LONGEST_TOKENS + 1, *range(47)), row(9000, 64, 9)
    )
    made = sessions(Trace(path, "mooncake"), 1)
    assert [session.turns[0].prompt_tokens for session in made] == [1000, 700, 64]
    first, second, third = (session.turns[0] for session in made)
    assert first.content.common(second.content) == 512
    assert first.content.common(third.content) == 0
    assert [int(session.arrives_ms // 3000) for session in made] == [0, 1, 3]
    assert sessions(Trace(path, "mooncake"), 2)[0].arrives_ms != made[0].arrives_ms


def test_azure(tmp_path: Path) -> None:
    path = azure(
        tmp_path,
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:50.9951690,396,109",
        "2023-11-16 18:16:46.6805900,0,7",
        "2023-11-16 18:16:50.6805900,20,0",
    )
    made = sessions(Trace(path, "azure"), 1)
    assert [(each.turns[0].prompt_tokens, each.turns[0].output_tokens) for each in made] == [
        (374, 44), (396, 109), (20, 1),
    ]  # fmt: skip
    assert [round(session.arrives_ms) for session in made] == [0, 4315, 64000]
    assert made[0].turns[0].content.common(made[1].turns[0].content) == 0


def test_lmcache_sessions_in_order_of_time(tmp_path: Path) -> None:
    start = "x" * 600
    (tmp_path / "inside").mkdir()
    files = {"a": [(7_000_000, start + "more"), (5_000_000, start)], "b": [(6_500_000, start)], "c": []}
    for name, rows in files.items():
        path = tmp_path / "inside" / f"{name}.jsonl"
        path.write_text("".join(f"{json.dumps(text_row(at, asked, name))}\n" for at, asked in rows))
    made = sessions(Trace(tmp_path, "lmcache"), 1)
    assert [(session.id, session.arrives_ms) for session in made] == [("a", 0.0), ("b", 1500.0)]
    earlier, later = made[0].turns
    assert (earlier.prompt_tokens, later.prompt_tokens, later.think_ms) == (150, 151, 2000.0)
    assert earlier.content.common(later.content) == 128
    assert earlier.prompt.blocks == made[1].turns[0].prompt.blocks


def test_a_part_of_it_faster(tmp_path: Path) -> None:
    path = azure(tmp_path, *[f"2023-11-16 18:15:{second:02}.0,100,10" for second in range(60)])
    made = sessions(Trace(path, "azure", duration_s=11.0), 1)
    assert len(made) == 11
    assert rate_of(made) == 1
    faster = sessions(Trace(path, "azure", rate=4.0, duration_s=11.0), 1)
    assert rate_of(faster) == pytest.approx(4.0)
    assert [session.id for session in faster] == [session.id for session in made]
    assert rate_of(made[:1]) == 1.0


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("mooncake", '{"timestamp": 0}\n', "line 1: Object missing required field `input_length`"),
        ("mooncake", f"{json.dumps(row(0, 10, 1))}\n\n[]\n", "line 3: Expected `object`, got `array`"),
        ("mooncake", "", "no request in it"),
        ("azure", "TIMESTAMP,Tokens\n2023-11-16 18:15:46,3\n", "no column ContextTokens"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,3,4\n", "line 2: Invalid isoformat string"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,3\n", "line 2: int"),
        ("lmcache", "no json\n", "line 1: "),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, kind: str, text: str, message: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(TraceError, match=message) as caught:
        sessions(Trace(path, kind), 1)
    assert str(caught.value).startswith(str(path))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        sessions(Trace(tmp_path / "none", "mooncake"), 1)
    with pytest.raises(TraceError, match="Is a directory"):
        sessions(Trace(tmp_path, "azure"), 1)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="UTF-8"):
        sessions(Trace(tmp_path / "binary", "azure"), 1)
