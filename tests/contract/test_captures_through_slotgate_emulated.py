"""Every recorded request of a real Ollama, through slotgate, to the emulated one: answers of the recorded form.

What the model says is not the same, so the structure is compared: status, headers, keys in their order, kinds of
values, frames of streams. Errors are compared word for word.
"""

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from proxy.emulated import EmulatedEngine, EmulatedModel
from tests.contract.exchanges import Exchange, exchanges
from tests.contract.http_files import frames_of
from tests.contract.shapes import shape
from tests.contract.test_captures_through_slotgate import DIFFERENCES, closed, same_head, without_id
from tests.contract.wire_client import Got, replay
from tests.proxy.box import Box, box

pytestmark = pytest.mark.asyncio(loop_scope="module")

RECORDED = exchanges()
MODELS = [
    EmulatedModel("smol", ("completion",), 134_515_008, 98_362_720, train_context=8192, embedding_length=576),
    EmulatedModel("smoltools", ("completion", "tools")),
    EmulatedModel("embed", ("embedding",), train_context=512, embedding_length=256),
]

ELSEWHERE = {
    "006-show": "describes one real model: its outer form is tested with the emulated engine itself",
    "032-chat-stream-raw-framing": "the same as 030, shown with its framing",
    "061-prompt-over-context": "about the tokens of a real model",
    "062-prompt-over-context-no-truncate": "about the tokens of a real model",
    "144-embed-too-long-truncated": "about the tokens of a real model",
    "145-embed-too-long-no-truncate": "about the tokens of a real model",
    **{name: "a child that dies needs a fault: replayed with the stand-in" for name in RECORDED if "killed" in name},
    **{name: "closed, whatever the backend" for name, check in DIFFERENCES.items() if check is closed},
    **{name: "depends on what was loaded or listed before" for name in RECORDED if "-ps-" in name},
    "004-tags": "depends on what was loaded or listed before",
    "070-openai-models": "depends on what was loaded or listed before",
    "071-openai-model": "the moment at which the model was made",
    "010-options-cors": "slotgate's own answer, whatever the backend",
    "085-anthropic-count-tokens": "slotgate's own answer, whatever the backend",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Box]:
    engine = EmulatedEngine("ollama", models=MODELS, slots=2, answer_tokens=(300, 300), speed=float("inf"))
    async with box(tmp_path_factory.mktemp("box"), [engine], limits={"max_wait_s": 20}) as found:
        yield found


def same_form(got: Got, recorded: Exchange) -> None:
    same_head(got, recorded)
    if not recorded.answer:
        assert not got.body
    elif recorded.chunked and "json;" not in got.header("Content-Type")[0] and len(recorded.chunks) > 1:
        assert frames_of(got.body.decode()) == frames_of(recorded.answer.decode())
        assert got.header("Transfer-Encoding") == ["chunked"]
    elif recorded.status >= 400:
        assert without_id(got.body).strip() == without_id(recorded.answer).strip()
    elif recorded.answer[:1] == b"{":
        assert shape(json.loads(got.body)) == shape(json.loads(recorded.answer))
    else:
        assert got.body == recorded.answer


@pytest.mark.parametrize("name", [name for name in RECORDED if name not in ELSEWHERE])
async def test_a_client_gets_an_answer_of_the_recorded_form(name: str, running: Box) -> None:
    same_form(await replay(running.address, RECORDED[name]), RECORDED[name])


async def test_what_is_loaded_is_shown_in_the_recorded_form(running: Box) -> None:
    await replay(running.address, RECORDED["022-generate-load"])
    recorded = RECORDED["023-ps-one"]
    got = await replay(running.address, recorded)
    shown = next(model for model in json.loads(got.body)["models"] if model["name"] == "smol:latest")
    [wanted] = json.loads(recorded.answer)["models"]
    same_head(got, recorded)
    assert shape(shown)[:-1] == shape(wanted)
    assert list(shown)[-1] == "slots"
