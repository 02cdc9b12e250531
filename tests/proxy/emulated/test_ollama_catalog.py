import pytest

from proxy.emulated.ollama_catalog import human_count, must_find, openai_models, ps, show, tags
from proxy.emulated.ollama_heads import OllamaError
from proxy.emulated.ollama_loaded import LoadCounts
from proxy.emulated.ollama_models import Models
from proxy.emulated.ollama_names import read_name
from proxy.emulated.options import EmulatedModel, Options
from tests.proxy.emulated.support import found, make_store


@pytest.mark.parametrize(
    ("number", "text"),
    [(134_515_008, "134.52M"), (8_030_261_248, "8.0B"), (7_000_000_000, "7B"), (70_553_706_496, "70.6B")],
)
def test_sizes_for_people(number: int, text: str) -> None:
    assert human_count(number) == text


async def test_what_there_is_and_what_is_loaded() -> None:
    store = make_store("a", "b:8b")
    models = Models(Options(api="ollama"), store, LoadCounts())
    assert [entry["name"] for entry in tags(store)["models"]] == ["a:latest", "b:8b"]
    assert ps(models) == {"models": []}
    for name, keep in (("a", 10.0), ("b:8b", 100.0)):
        (await models.use(found(store, name), {}, keep)).release()
    assert [entry["name"] for entry in ps(models)["models"]] == ["b:8b", "a:latest"]  # the last to expire first
    await models.close()


async def test_what_is_kept_for_ever_expires_in_three_centuries_and_a_running_one_says_when_it_would() -> None:
    store = make_store("a")
    models = Models(Options(api="ollama"), store, LoadCounts())
    use = await models.use(found(store, "a"), {}, -1)
    running = ps(models)["models"][0]["expires_at"]
    use.release()
    assert running[:2] == ps(models)["models"][0]["expires_at"][:2] == "23"
    await models.close()


def test_a_model_is_described() -> None:
    model = EmulatedModel("a", family="qwen3", settings={"num_ctx": 8192})
    store = make_store(model)
    described = show(store, found(store, "a"))
    assert described["model_info"]["general.architecture"] == "qwen3"
    assert described["model_info"]["qwen3.context_length"] == model.train_context
    lines = ['stop                           "<|im_end|>"', "num_ctx                        8192"]
    assert described["parameters"].splitlines() == lines
    assert f"FROM /emulated/models/blobs/{found(store, 'a').blob.replace(':', '-')}\n" in described["modelfile"]


def test_copies_look_alike() -> None:
    store = make_store("a")
    name = read_name("b")
    assert name is not None
    store.copy(found(store, "a"), name)
    listed = {entry["name"]: entry["digest"] for entry in tags(store)["models"]}
    assert list(listed) == ["b:latest", "a:latest"]  # the newest first
    assert listed["a:latest"] == listed["b:latest"]


def test_without_models_the_list_is_null() -> None:
    assert openai_models(make_store()) == {"object": "list", "data": None}


@pytest.mark.parametrize(
    ("name", "tagged", "message"),
    [("", False, "model is required"), ("x", False, "model 'x' not found"), ("x", True, "model 'x:latest' not found")],
)
def test_what_is_not_there(name: str, tagged: bool, message: str) -> None:
    with pytest.raises(OllamaError) as caught:
        must_find(make_store(), name, tagged=tagged)
    assert caught.value.message == message
