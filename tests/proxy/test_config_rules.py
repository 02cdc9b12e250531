"""Rules between options, each on the backends that break it."""

from typing import Any

import pytest

from proxy.config import BackendConfig, BoxConfig
from proxy.config_rules import (
    EXTERNAL_ONLY,
    LLAMA_SERVER_ONLY,
    MANAGED_ONLY,
    OLLAMA_ONLY,
    OWN_FLAGS,
    OWN_VARIABLES,
    backend_problems,
    box_problems,
    box_warnings,
    loop_problems,
    policy_problems,
    section_problems,
    unfit_keys,
)


def problems(*backends: dict[str, Any]) -> list[tuple[str, str]]:
    """Where and what, of each finding."""
    models = [(index, BackendConfig.model_validate(backend)) for index, backend in enumerate(backends)]
    return [(".".join(map(str, path)), what) for path, what, _ in backend_problems(models)]


def test_a_sound_fleet_has_none() -> None:
    assert not problems(
        {"url": "http://a:1", "api_key": "k", "slots": 2},
        {"url": "http://b:1", "name": "b"},
        {"engine": "llama-server", "model": "/m.gguf", "name": "c", "gpus": ["0"]},
        {"engine": "ollama", "keep_alive": "1h", "models_dir": "/m"},
    )


@pytest.mark.parametrize("engine", ["auto", "llama-server", "embedded"])
def test_llama_server_needs_a_model(engine: str) -> None:
    assert problems({"engine": engine}) == [("backends.0", "llama-server needs a model to load")]


def test_names_and_engines_are_used_once() -> None:
    assert problems({"url": "http://a:1", "name": "x"}, {"url": "http://b:1", "name": "x"}) == [
        ("backends.1.name", "'x' is also the name of backends[0]")
    ]
    found = problems({"url": "http://a:1"}, {"url": "http://a:1/"})
    assert [where for where, _ in found] == ["backends.1.url"]


def test_one_ollama_is_for_cloud_models() -> None:
    cloud = {"cloud": True}
    assert problems({"url": "http://a:1"} | cloud, {"url": "http://b:1"}) == []
    assert problems({"url": "http://a:1"} | cloud, {"url": "http://b:1"} | cloud) == [
        ("backends.1.cloud", "is true for backends[0] too")
    ]
    assert [where for where, _ in problems({"model": "/m.gguf"} | cloud)] == ["backends.0.cloud"]


@pytest.mark.parametrize(
    ("backend", "where"),
    [
        ({"url": "http://a:1", "gpus": "none"}, "backends.0.gpus"),
        ({"url": "http://a:1", "restart": {"budget": 1}}, "backends.0.restart"),
        ({"model": "/m", "api_key": "k"}, "backends.0.api_key"),
        ({"model": "/m", "gpu_name": "cpu"}, "backends.0.gpu_name"),
        ({"model": "/m", "keep_alive": "5m"}, "backends.0.keep_alive"),
        ({"engine": "ollama", "flags": ["-x"]}, "backends.0.flags"),
    ],
)
def test_options_of_another_kind_of_backend(backend: dict[str, Any], where: str) -> None:
    assert [found for found, _ in problems(backend)] == [where]


@pytest.mark.parametrize(
    ("flags", "named", "fix"),
    [
        (["--host", "0.0.0.0"], "--host", "clients use `listen`"),
        (["--port=1"], "--port", "clients use `listen`"),
        (["--api-key-file", "/k"], "--api-key-file", "a random key"),
        (["-m", "/other"], "-m", "set model"),
        (["--alias", "x"], "--alias", "set model_name"),
        (["-fa", "on", "-np", "2"], "-np", "set slots"),
        (["--parallel=2"], "--parallel", "set slots"),
        (["-c 8192"], "-c", "set context_tokens, which is for one slot"),
        (["--ctx_size", "8192"], "--ctx-size", "set context_tokens"),
        (["--no-slots"], "--no-slots", "slotgate reads it"),
        (["--metrics"], "--metrics", "slotgate reads it"),
    ],
)
def test_flags_that_are_not_the_users_to_set(flags: list[str], named: str, fix: str) -> None:
    backend = BackendConfig.model_validate({"model": "/m.gguf", "flags": flags})
    [(path, what, advice)] = backend_problems([(0, backend)])
    assert (path, what) == (("backends", 0, "flags"), f"{named} is slotgate's to set")
    assert advice.startswith(f"leave {named} out")
    assert fix in advice


@pytest.mark.parametrize(
    ("backend", "variable", "fix"),
    [
        ({"model": "/m"}, "LLAMA_ARG_HOST", "clients use `listen`"),
        ({"model": "/m"}, "LLAMA_ARG_N_PARALLEL", "set slots"),
        ({"model": "/m"}, "CUDA_VISIBLE_DEVICES", "set gpus"),
        ({"engine": "ollama"}, "OLLAMA_HOST", "clients use `listen`"),
        ({"engine": "ollama"}, "OLLAMA_KEEP_ALIVE", "set keep_alive"),
        ({"engine": "ollama"}, "LLAMA_ARG_MODEL", "it is not for this engine"),
    ],
)
def test_variables_that_are_not_the_users_to_set(backend: dict[str, Any], variable: str, fix: str) -> None:
    model = BackendConfig.model_validate(backend | {"env": {variable: "x", "HF_TOKEN": "y"}})
    [(path, what, advice)] = backend_problems([(0, model)])
    assert (path, what) == (("backends", 0, "env", variable), f"{variable} is slotgate's to set")
    assert fix in advice


def test_other_flags_and_variables_are_the_users() -> None:
    flags = ["-fa", "on", "--chat-template", "{{ '-m' }}", "-ngl", "20", "--hf-token=x", "-ub", "128"]
    assert not problems({"model": "/m", "flags": flags, "env": {"LLAMA_ARG_FLASH_ATTN": "1", "OLLAMA_DEBUG": "1"}})


def test_a_given_number_of_slots_bounds_the_running_limit_of_an_external_engine() -> None:
    assert problems({"url": "http://a:1", "slots": 2, "running_limit": 3}) == [
        ("backends.0.running_limit", "3 is more than slots = 2")
    ]
    assert not problems({"url": "http://a:1", "running_limit": 8})  # it tells its slots itself


@pytest.mark.parametrize(
    ("listen", "url", "loops"),
    [
        ("127.0.0.1:11434", "http://127.0.0.1:11434", True),
        ("127.0.0.1:11434", "http://LOCALHOST:11434/v1", True),
        ("localhost:11434", "http://[::1]:11434", True),
        (":11434", "http://127.0.0.2:11434", True),
        ("0.0.0.0:11434", "http://localhost:11434", True),
        ("[::]:11434", "http://[::1]:11434", True),
        ("Box:80", "http://box", True),
        ("unix:/run/a.sock", "unix:///run/a.sock", True),
        ("127.0.0.1:11434", "http://127.0.0.1:11435", False),
        ("127.0.0.1:11434", "http://127.0.0.2:11434", False),
        ("127.0.0.1:11434", "http://box:11434", False),
        (":11434", "http://box:11434", False),
        ("unix:/run/a.sock", "unix:/run/b.sock", False),
        ("127.0.0.1:11434", "unix:/run/b.sock", False),
        ("unix:/run/a.sock", "http://a", False),
        ("nowhere", "http://127.0.0.1:11434", False),
    ],
)
def test_slotgate_is_not_its_own_backend(listen: str, url: str, loops: bool) -> None:
    found = list(loop_problems(listen, [(0, BackendConfig(model=None, engine="ollama")), (1, BackendConfig(url=url))]))
    assert [path for path, _, _ in found] == ([("backends", 1, "url")] if loops else [])
    assert all(f"listen = {listen}" in what for _, what, _ in found)


def test_an_ollama_may_do_without_what_its_children_tell() -> None:
    env = {"LLAMA_ARG_ENDPOINT_METRICS": "0"}
    assert list(backend_problems([(0, BackendConfig(engine="ollama", env=env))])) == []
    assert len(list(backend_problems([(0, BackendConfig.model_validate({"model": "/m", "env": env}))]))) == 1


def test_the_lists_name_real_options() -> None:
    assert {*EXTERNAL_ONLY, *MANAGED_ONLY, *OLLAMA_ONLY, *LLAMA_SERVER_ONLY} <= set(BackendConfig.model_fields)
    words = {own for own in (*OWN_FLAGS.values(), *OWN_VARIABLES.values()) if " " not in own}
    assert words <= set(BackendConfig.model_fields)
    assert not {"slots", "context_tokens", "max_loaded_models"} & set(unfit_keys(BackendConfig(url="http://a:1")))


@pytest.mark.parametrize("values", [{}, {"policy": 3}, {"policy": {"set": []}}, {"policy": {"set": {"hold_s": 1}}}])
def test_policies_without_problems(values: dict[str | int, Any]) -> None:
    assert list(policy_problems(values)) == []


def test_keys_of_a_policy() -> None:
    found = list(policy_problems({"policy": {"set": {"hold_ratio": 2, "x": [1]}}}))
    assert [place for place, _, _ in found] == [("policy", "set", "hold_ratio"), ("policy", "set", "x")]


SECRET = "0123456789abcdef"


@pytest.mark.parametrize(
    ("box", "found"),
    [
        ({}, {}),
        ({"name": "a", "secret": SECRET, "tls_ca": "/ca.pem"}, {}),
        ({"gate": ":11436", "secret": SECRET}, {}),
        (
            {
                "gate": "10.0.0.1:0",
                "secret_file": "/s",
                "gate_address": "a.example:1",
                "tls_cert": "/c",
                "tls_key": "/k",
            },
            {},
        ),
        ({"gate": ":11436"}, {"gate": "without a secret"}),
        ({"gate": "127.0.0.1:11436"}, {"gate": "without a secret"}),
        ({"gate": "unix:/run/gate.sock", "secret": SECRET}, {"gate": "unix socket"}),
        ({"secret": "sesame"}, {"secret": "has 6 characters and needs 16"}),
        ({"secret": "open sesame, please"}, {"secret": "blanks"}),
        ({"secret": SECRET, "secret_file": "/s"}, {}),
        ({"gate": ":1", "secret": SECRET, "tls_cert": "/c"}, {"tls_cert": "without tls_key"}),
        ({"gate": ":1", "secret": SECRET, "tls_key": "/k"}, {"tls_key": "without tls_cert"}),
        (
            {"gate_address": "a:1", "tls_cert": "/c", "tls_key": "/k"},
            dict.fromkeys(["gate_address", "tls_cert", "tls_key"], "none"),
        ),
        ({"gate": ":1", "secret": SECRET, "gate_address": ":1"}, {"gate_address": "no address that can be dialed"}),
        ({"gate": ":1", "secret": SECRET, "gate_address": "a:0"}, {"gate_address": "no address that can be dialed"}),
    ],
)
def test_boxes(box: dict[str, Any], found: dict[str, str]) -> None:
    problems = list(box_problems(BoxConfig.model_validate(box)))
    assert {path for path, _, _ in problems} == {("box", key) for key in found}
    for path, what, fix in problems:
        assert found[str(path[1])] in what
        assert fix
    assert "sesame" not in str(problems)
    assert list(section_problems({"box": box})) == problems


def test_boxes_that_are_wrong_by_themselves_are_told_elsewhere() -> None:
    assert list(section_problems({"box": {"gate": 3}})) == []


@pytest.mark.parametrize(
    ("box", "warned"),
    [
        ({}, False),
        ({"gate": "127.0.0.1:1"}, False),
        ({"gate": "[::1]:1"}, False),
        ({"gate": ":1"}, True),
        ({"gate": "10.0.0.1:1"}, True),
        ({"gate": "10.0.0.1:1", "tls_cert": "/c", "tls_key": "/k"}, False),
    ],
)
def test_gates_without_tls(box: dict[str, Any], warned: bool) -> None:
    warnings = list(box_warnings(BoxConfig.model_validate(box)))
    assert [path for path, _, _ in warnings] == [("box", "gate")] * warned
