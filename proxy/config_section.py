"""What all tables of the configuration have in common, and the kinds of values in them. Owns no option."""

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator

_PATHS = ("state_dir", "admin_socket", "binary", "model", "models_dir", "secret_file", "tls_cert", "tls_key", "tls_ca")


class Section(BaseModel):
    """A table of the configuration file: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @field_validator(*_PATHS, mode="before", check_fields=False)
    @classmethod
    def _path_of_something(cls, value: object) -> object:
        if value == "":  # to pathlib that is the directory slotgate happens to be started in
            raise ValueError("'' is no path: name one, or leave the option out for its default")
        return value


PositiveInt = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)"
_DURATION = re.compile(rf"[+-]?(?:{_PART})+")


def keep_alive_s(text: str) -> float:
    """Seconds for which an idle model stays loaded, below 0: for ever. OLLAMA_KEEP_ALIVE takes the same.

    Source: envconfig/config.go, KeepAlive, of Ollama 0.33.

    Raises:
        ValueError: it is neither a Go duration nor a whole number of seconds.
    """
    try:
        return float(int(text))
    except ValueError:
        pass
    if not _DURATION.fullmatch(text):
        raise ValueError('write "5m", "1h30m" or "300s", a number of seconds, or -1 for ever')
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in re.findall(_PART, text))
    return -seconds if text.startswith("-") else seconds


def _checked_keep_alive(text: str) -> str:
    keep_alive_s(text)
    return text


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


KeepAlive = Annotated[str, BeforeValidator(_as_text), AfterValidator(_checked_keep_alive)]
