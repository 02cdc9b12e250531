import json
from typing import Any

import pytest

from proxy.emulated.schema_text import json_object, json_text

NOISE = bytes(range(64))


@pytest.mark.parametrize(
    ("schema", "check"),
    [
        ({"type": "string"}, lambda value: isinstance(value, str)),
        ({"type": "string", "minLength": 40}, lambda value: len(value) == 40),
        ({"type": "string", "maxLength": 3}, lambda value: len(value) == 3),
        ({"type": "integer", "minimum": 5, "maximum": 7}, lambda value: 5 <= value <= 7),
        ({"type": "integer", "maximum": 3}, lambda value: value <= 3),
        ({"type": "integer", "exclusiveMinimum": 0}, lambda value: value > 0),
        ({"type": "number"}, lambda value: isinstance(value, float)),
        ({"type": "boolean"}, lambda value: isinstance(value, bool)),
        ({"type": "null"}, lambda value: value is None),
        ({"type": ["null", "integer"]}, lambda value: isinstance(value, int)),
        ({"enum": ["a", "b"]}, lambda value: value in {"a", "b"}),
        ({"const": 4}, lambda value: value == 4),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 3}, lambda value: len(value) == 3),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, lambda value: isinstance(value, int)),
        ({"type": "object"}, lambda value: value == {}),
        ({}, lambda value: isinstance(value, dict) and value),
    ],
)
def test_the_text_fits(schema: dict[str, Any], check: Any) -> None:
    assert check(json.loads(json_text(schema, NOISE)))


def test_definitions_are_followed() -> None:
    schema = {
        "$defs": {"pet": {"type": "object", "properties": {"name": {"type": "string"}}}},
        "type": "object",
        "properties": {"pets": {"type": "array", "items": {"$ref": "#/$defs/pet"}}},
    }
    value = json_object(schema, NOISE)
    assert all(isinstance(pet["name"], str) for pet in value["pets"])


def test_a_schema_that_contains_itself_ends() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    assert json_object(schema, NOISE)["next"]


def test_what_leads_nowhere_is_null() -> None:
    assert json_text({"$ref": "#/nowhere"}, b"") == "null"
    assert json_object({"type": "string"}, NOISE) == {}
