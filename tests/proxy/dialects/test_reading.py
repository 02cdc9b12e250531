from proxy.dialects.reading import choices, embed_inputs, image_bytes, names, output_limit, prompts, whole32


def test_choices_as_llama_server_counts_them() -> None:
    given: list[object] = [3, 0, -1, True, "3", None, 2.0, 2.7, 2**32 + 2, 2 - 2**32, 2**63, 1e300]
    assert [choices({"n": value}) for value in given] == [3, 1, 1, 1, 1, 1, 2, 2, 2, 2, 1, 1]
    assert [choices({"n_cmpl": value, "n": 4}) for value in given[:7]] == [3, 1, 1, 1, 1, 4, 2]
    assert choices({}) == 1


def test_whole_numbers_as_llama_server_cuts_them() -> None:
    given = [-4294967295, 4294967297, -1, 2**63 + 1, True, False, 1.9, -0.5, -1.5, 2**31 - 1, -(2**31) - 0.5]
    assert [whole32(value) for value in given] == [1, 1, -1, 1, 1, 0, 1, 0, -1, 2**31 - 1, -(2**31)]
    for value in (4294967298.0, -4294967295.0, 3e9, 1e300, 2**64 + 1, -(2**63) - 1):
        assert whole32(value) == -(2**31)


def test_limits_of_answers() -> None:
    given: list[object] = [3, 2.7, 0, -1, 2**40, True, "3", None]
    assert [output_limit({"n_predict": value}) for value in given] == [3, 2, None, None, None, None, None, None]
    assert output_limit({"max_tokens": 5, "max_completion_tokens": 4}) == 4
    assert output_limit({"max_tokens": None, "max_output_tokens": 6}) == 6
    assert output_limit({"num_predict": 7, "max_tokens": 5}, "num_predict") == 7
    assert output_limit({}) is None


def test_prompts() -> None:
    mixed = ["a", [5, 6], {"prompt_string": "b"}]
    given: tuple[object, ...] = ("x", ["a", "b"], [1, 2], [[1], [2]], ["a", 5, 6], mixed, [], None)
    assert [prompts(value) for value in given] == [1, 2, 1, 2, 1, 3, 1, 1]


def test_inputs_of_an_embedding() -> None:
    assert embed_inputs({"content": ["a", "b"]}, "input", "content") == ("content", 2)
    assert embed_inputs({"content": ["a", "b"], "input": ["a", "b", "c"]}, "input", "content") == ("input", 3)
    assert embed_inputs({"input": ["a"], "content": ["a", "b"]}, "input", "content") == ("", 1)
    single: list[object] = ["a", ["a"], [1, 2], [], None]
    for given in single:
        assert embed_inputs({"input": given}, "input", "content") == ("", 1)
    assert embed_inputs({}, "input", "content") == ("", 1)


def test_images() -> None:
    source = {"type": "base64", "data": "a" * 50}
    assert image_bytes([{"content": [{"type": "image", "source": source}]}, {"content": "text"}, "x"]) == 50
    assert image_bytes([{"content": [{"image_url": "a" * 7}]}]) == 7
    assert image_bytes("text") == image_bytes(None) == 0


def test_names() -> None:
    assert names("a b\n c") == ("a", "b", "c")
