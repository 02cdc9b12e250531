import pytest

from proxy.emulated.ollama_catalog import human_count, must_find, openai_models, ps, show, tags
from proxy.emulated.ollama_heads import OllamaError
from proxy.emulated.ollama_models import Models
from proxy.emulated.options import EmulatedModel, Options


@pytest.mark.parametrize(
    ("number", "text"),
    [(134_515_008, "134.52M"), (8_030_261_248, "8.0B"), (7_000_000_000, "7B"), (70_553_706_496, "70.6B")],
)
def test_sizes_for_people(number: int, text: str) -> None:
    assert human_count(number) == text


async def test_what_there_is_and_what_is_loaded() -> None:
    models = Models(Options(api="ollama", models=(EmulatedModel("a"), EmulatedModel("b:8b"))))
    assert [entry["name"] for entry in tags(models)["models"]] == ["a:latest", "b:8b"]
    assert ps(models) == {"models": []}
    for name, keep in (("a", 10.0), ("b:8b", 100.0)):
        use = await models.use(must_find(models, name), {}, keep)
        models.release(use.loaded)
    assert [entry["name"] for entry in ps(models)["models"]] == ["b:8b", "a:latest"]  # the last to expire first
    await models.close()


def test_a_model_is_described() -> None:
    model = EmulatedModel("a", family="qwen3")
    described = show(Models(Options(models=(model,))), model)
    assert described["model_info"]["general.architecture"] == "qwen3"
    assert described["model_info"]["qwen3.context_length"] == model.train_context


def test_without_models_the_list_is_null() -> None:
    models = Models(Options(models=(EmulatedModel("a"),)))
    models.remove(models.present["a:latest"])
    assert openai_models(models) == {"object": "list", "data": None}


@pytest.mark.parametrize(
    ("name", "tagged", "message"),
    [("", False, "model is required"), ("x", False, "model 'x' not found"), ("x", True, "model 'x:latest' not found")],
)
def test_what_is_not_there(name: str, tagged: bool, message: str) -> None:
    with pytest.raises(OllamaError) as caught:
        must_find(Models(Options()), name, tagged=tagged)
    assert caught.value.message == message
