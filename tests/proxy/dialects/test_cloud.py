import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.cloud import is_stub, named_cloud, named_local


@pytest.mark.parametrize(
    "name",
    ["gpt-oss:cloud", "gpt-oss:120b-cloud", " GPT-OSS:120B-Cloud ", "me/x:cloud", "registry.ollama.ai/library/x:cloud"],
)
def test_names_of_cloud_models(name: str) -> None:
    assert named_cloud(name)
    assert not named_local(name)


@pytest.mark.parametrize(
    "name",
    ["gpt-oss", "cloud", "x-cloud", "gpt-oss:cloudy", "gpt-oss:cloud-20b", "host:5000/x-cloud", "x:cloud:local", ""],
)
def test_names_of_other_models(name: str) -> None:
    assert not named_cloud(name)


def test_a_name_can_insist_on_a_model_of_this_machine() -> None:
    assert named_local("gpt-oss:20b:local")
    assert named_local("gpt-oss:LOCAL ")
    assert not named_local("local")
    assert not named_local("x:localhost")


@given(st.text())
def test_no_name_is_both(name: str) -> None:
    assert not (named_cloud(name) and named_local(name))


def test_entries_that_stand_for_a_model_elsewhere() -> None:
    assert is_stub({"name": "x:cloud", "remote_host": "https://ollama.com:443", "remote_model": "x"})
    assert not is_stub({"name": "x", "remote_host": "", "remote_model": ""})
    assert not is_stub({})
