"""One stream of progress from several."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from proxy.model_store.progress import LATE, WAITING, Progress, error_of, is_success

D1, D2 = "sha256:aa", "sha256:bb"


def raw(**told: Any) -> bytes:
    return msgspec.json.encode(told)


def said(lines: list[tuple[str, bytes]]) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for _, line in lines]


def test_what_one_store_says_passes_as_it_came() -> None:
    progress = Progress(["a"])
    odd = b'{"digest":"sha256:aa",  "status":"pulling aa","total":5,"future":true}'

    assert progress.feed("a", odd) == [(D1, odd + b"\n")]
    assert (
        progress.feed("a", b'{"status": "verifying sha256 digest"}')[0][1] == b'{"status": "verifying sha256 digest"}\n'
    )
    assert progress.feed("a", b'{"status":"success"}') == []


def test_a_bar_has_its_whole_total_from_the_first_line_on() -> None:
    """`ollama pull` takes the total of a bar from the first line."""
    progress = Progress(["a", "b"])
    first = said(progress.feed("a", raw(status="pulling aa", digest=D1, total=100)))
    second = said(progress.feed("a", raw(status="pulling aa", digest=D1, total=100, completed=60)))
    third = said(progress.feed("b", raw(status="pulling aa", digest=D1, total=100, completed=100)))

    assert first == [{"status": "pulling aa", "digest": D1, "total": 200}]
    assert [second[0]["completed"], third[0]["completed"]] == [60, 160]
    assert {second[0]["total"], third[0]["total"]} == {200}


def test_a_status_that_ends_a_phase_waits_for_all() -> None:
    progress = Progress(["a", "b"])
    assert said(progress.feed("a", raw(status="pulling manifest"))) == [{"status": "pulling manifest"}]
    assert progress.feed("b", raw(status="pulling manifest")) == []
    assert progress.feed("a", raw(status="verifying sha256 digest")) == []
    assert progress.feed("a", raw(status="writing manifest")) == []
    assert progress.feed("b", raw(status="verifying sha256 digest")) != []
    assert said(progress.ended("b")) == [{"status": "writing manifest"}]


def test_who_comes_later_hears_the_last_of_each() -> None:
    progress = Progress(["a"])
    for line in (
        raw(status="pulling manifest"),
        raw(status="pulling aa", digest=D1, total=5, completed=1),
        raw(status="pulling bb", digest=D2, total=5),
        raw(status="pulling aa", digest=D1, total=5, completed=4),
    ):
        progress.feed("a", line)

    latest = [msgspec.json.decode(line) for line in progress.latest.values()]
    assert [each.get("completed") for each in latest if each.get("digest") == D1] == [4]
    assert len(latest) == 3


def test_waiting_is_told_unless_others_get_on() -> None:
    progress = Progress(["a", "b"])
    assert said(progress.waiting("a")) == [{"status": WAITING}]
    progress.feed("b", raw(status="pulling aa", digest=D1, total=5, completed=1))
    assert progress.waiting("a") == []


def test_errors_and_successes() -> None:
    assert (
        error_of(b'{"error":"pull model manifest: file does not exist"}') == "pull model manifest: file does not exist"
    )
    assert error_of(b'{"status":"x"}') is None
    assert error_of(b"nonsense") is None
    assert is_success(b'{"status":"success"}')
    assert not is_success(b'{"status":"succeeded"}')


NAMES = ["a", "b", "c"]
STEP = st.tuples(
    st.sampled_from(NAMES),
    st.one_of(
        st.builds(
            lambda d, c: raw(status=f"pulling {d}", digest=d, total=50, completed=c),
            st.sampled_from([D1, D2]),
            st.integers(-5, 80),
        ),
        st.sampled_from([raw(status=text) for text in ("pulling manifest", *sorted(LATE), "success")]),
        st.binary(max_size=8),
    ),
)


@given(st.lists(STEP, max_size=60))
def test_whatever_comes(steps: list[tuple[str, bytes]]) -> None:
    progress = Progress(list(NAMES))
    told = [record for name, line in steps for record in said(progress.feed(name, line))]
    told += [record for name in NAMES for record in said(progress.ended(name))]

    bars: dict[str, int] = {}
    for record in told:
        if "digest" in record:
            assert record["total"] == 150
            assert bars.get(record["digest"], 0) <= record.get("completed", 0) <= 150
            bars[record["digest"]] = record.get("completed", 0)
    texts = [record["status"] for record in told if "digest" not in record]
    assert len(texts) == len(set(texts))
    assert "success" not in texts
    assert set(texts) >= {text for text in LATE if any(line == raw(status=text) for _, line in steps)}
