import pytest

from proxy.dialects.errors import ClientError
from proxy.dialects.goduration import keep_alive_s, parse


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("1h30m", 5400),
        ("-1m", -60),
        ("1.5h", 5400),
        ("100ms", 0.1),
        ("0", 0),
        ("+5s", 5),
        (".5s", 0.5),
        ("5.s", 5),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("soon", 'time: invalid duration "soon"'),
        ("", 'time: invalid duration ""'),
        ("5", 'time: missing unit in duration "5"'),
        ("1d", 'time: unknown unit "d" in duration "1d"'),
        ("-", 'time: invalid duration "-"'),
        ("1h x", 'time: unknown unit "h x" in duration "1h x"'),
    ],
)
def test_gos_words(text: str, words: str) -> None:
    with pytest.raises(ClientError) as caught:
        parse(text)
    assert caught.value.message == words


def test_keep_alive() -> None:
    assert keep_alive_s(None) is None
    assert keep_alive_s(0) == keep_alive_s("0s") == 0
    assert keep_alive_s(-1) == keep_alive_s("-1m") == -1
    assert keep_alive_s(2.5) == 2.5
    assert keep_alive_s(10**400) == 1e18
    assert keep_alive_s(-(10**400)) == -1
    with pytest.raises(ClientError, match="Unsupported type: 'bool'"):
        keep_alive_s(True)
    with pytest.raises(ClientError, match="Unsupported type"):
        keep_alive_s([])
