from proxy.emulated.llama_state import metrics, model_list, props, sampling, slot_view
from proxy.emulated.options import EmulatedModel, Options
from tests.proxy.emulated.support import make_engine, make_job, ran
from tests.wait import until


async def test_a_slot_shows_little_until_it_is_used() -> None:
    engine = make_engine(slots=1, speed=1)
    assert slot_view(engine.slots[0], engine) == {"id": 0, "n_ctx": 512, "speculative": False, "is_processing": False}
    job, notes = make_job("one two six", 50, params={"most": 50})
    engine.submit(job)
    await until(lambda: job.decoded > 3, "it decodes")
    view = slot_view(engine.slots[0], engine)
    assert view["is_processing"]
    assert (view["n_prompt_tokens"], view["n_prompt_tokens_processed"]) == (job.held, 3)
    assert view["next_token"][0]["n_remain"] == 50 - job.decoded
    assert view["params"]["n_predict"] == 50
    engine.leave(job)
    await notes.over.wait()
    view = slot_view(engine.slots[0], engine)
    assert (view["n_prompt_tokens"], view["n_prompt_tokens_processed"]) == (len(engine.slots[0].tokens), 0)
    assert view["next_token"] == [{"has_next_token": False, "has_new_line": False, "n_remain": -1, "n_decoded": 0}]
    await engine.close()


async def test_metrics_count_and_their_rates_are_since_the_last_scrape() -> None:
    engine = make_engine(slots=1, speed=100)
    since: dict[str, float] = {}
    await ran(engine, "one two six", 5)

    def value(name: str) -> float:
        line = next(row for row in metrics(engine, since).splitlines() if row.startswith(f"llamacpp:{name} "))
        return float(line.split()[1])

    assert value("predicted_tokens_seconds") > 0
    assert value("predicted_tokens_seconds") == 0
    assert value("prompt_tokens_total") == 3
    assert value("tokens_predicted_total") == 5
    assert value("n_decode_total") == 5
    await engine.close()


async def test_props_say_what_the_engine_can() -> None:
    engine = make_engine(slots=3)
    options = Options(models=(EmulatedModel("a", capabilities=("completion",)),), slots=3, metrics=False)
    value = props(options, engine, "<marker>")
    assert (value["total_slots"], value["model_alias"], value["endpoint_metrics"]) == (3, "a", False)
    assert value["default_generation_settings"]["n_ctx"] == 512
    assert not value["chat_template_caps"]["supports_tools"]
    assert props(Options(), engine, "")["chat_template_caps"]["supports_tools"]
    assert model_list(options, engine)["data"][0]["meta"]["n_ctx"] == 512
    await engine.close()


def test_parameters_are_shown_short_and_full() -> None:
    short, full = sampling({"temperature": 0}, full=False), sampling({"stop": ["a"]}, full=True)
    assert short["temperature"] == 0.0
    assert "stop" not in short
    assert full["stop"] == ["a"]
    assert [name for name in full if name in short] == list(short)
