from typing import Any

import pytest

from proxy.dialects.errors import ClientError
from proxy.dialects.options import check_options, sampling


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_ctx": "many"}, 'option "num_ctx" must be of type integer'),
        ({"seed": True}, 'option "seed" must be of type integer'),
        ({"top_p": "x"}, 'option "top_p" must be of type float32'),
        ({"use_mmap": 1}, 'option "use_mmap" must be of type boolean'),
        ({"stop": 1}, 'option "stop" must be of type array'),
        ({"stop": [1]}, 'option "stop" must be of an array of strings'),
    ],
)
def test_wrong_types(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ClientError) as caught:
        check_options(options)
    assert (caught.value.status, caught.value.message) == (500, words)


def test_unknown_and_unset_options_are_ignored() -> None:
    check_options({"frobnicate": {}, "num_ctx": None, "stop": "x", "top_k": 3.0})
    assert sampling({"frobnicate": 1, "num_ctx": 2048, "num_gpu": 1, "temperature": None}) == {}


def test_what_becomes_of_them() -> None:
    assert sampling({"num_predict": 5, "num_keep": 2, "top_k": 3.0, "temperature": 0.5, "stop": "x"}) == {
        "n_predict": 5,
        "n_keep": 2,
        "top_k": 3,
        "temperature": 0.5,
        "stop": ["x"],
    }
    assert sampling({"num_predict": -1, "stop": []}) == sampling({"num_predict": -2}) == {}
    assert sampling({"num_predict": 0, "stop": ["a", "", "b"]}) == {"n_predict": 0, "stop": ["a", "b"]}
    same = {"top_p": 0.9, "min_p": 0.1, "typical_p": 0.9, "seed": 3, "repeat_penalty": 1.1, "repeat_last_n": 3}
    same |= {"presence_penalty": 0.1, "frequency_penalty": 0.1, "mirostat": 1, "mirostat_tau": 4.0, "mirostat_eta": 0.2}
    assert sampling(same) == same
