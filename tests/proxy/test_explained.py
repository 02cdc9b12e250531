"""The explanation's JSON is a contract like that of the other answers."""

import msgspec
import pytest

from proxy.explained import ExplainAnswer
from tests.proxy.admin_stand_in import explain_answer, waiting_answer


@pytest.mark.parametrize("answer", [explain_answer(), waiting_answer()])
def test_answers_survive_the_wire(answer: ExplainAnswer) -> None:
    assert msgspec.json.decode(msgspec.json.encode(answer), type=ExplainAnswer) == answer


def test_of_one_of_whom_little_is_known_and_what_a_newer_proxy_adds() -> None:
    told = msgspec.json.decode(b'{"id": "r-1", "decisions": [], "more": 1}', type=ExplainAnswer)
    assert told == ExplainAnswer("r-1", [])
