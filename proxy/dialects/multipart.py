"""Owns reading the form that /v1/audio/transcriptions takes: its fields, and that there is a file. Keeps no file.

The form goes to the engine as it came. Only what routing needs is read, with python-multipart.
"""

from typing import Any, Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from proxy.dialects.contract import Headers
from proxy.dialects.errors import ClientError

MAX_FORM_BYTES: Final = 25 * 1024 * 1024
"""Of the whole form: OpenAI's limit for a file, and how much of one Ollama keeps in memory."""
_MAX_FIELD_BYTES: Final = 64 * 1024
_MAX_PARTS: Final = 100


def content_type(headers: Headers) -> str:
    """The request's Content-Type as the client wrote it; empty: it has none."""
    return next((value for name, value in headers if name.lower() == "content-type"), "")


def read_form(body: bytes, given_type: str) -> dict[str, Any]:
    """The text fields by name, the first of several; under `file` the size of the file in bytes.

    Raises:
        ClientError: 400 in Ollama's words: it is no such form. 413: it is too large.
    """
    if len(body) > MAX_FORM_BYTES:
        raise ClientError(413, f"the form is larger than {MAX_FORM_BYTES} bytes: send a shorter recording")
    kind, options = parse_options_header(given_type.encode("utf-8", "replace"))
    if kind != b"multipart/form-data":
        raise _bad("request Content-Type isn't multipart/form-data")
    if not options.get(b"boundary"):
        raise _bad("no multipart boundary param in Content-Type")
    form = _Form()
    try:
        parser = MultipartParser(
            options[b"boundary"],
            {
                "on_part_begin": form.begin,
                "on_header_field": form.header_name,
                "on_header_value": form.header_value,
                "on_header_end": form.header_end,
                "on_headers_finished": form.headers_end,
                "on_part_data": form.data,
                "on_part_end": form.end,
                "on_end": form.all_read,
            },
        )
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise _bad(str(error)) from None
    if not form.complete:
        raise _bad("multipart: NextPart: EOF")
    return form.fields


def _bad(why: str) -> ClientError:
    return ClientError(400, f"failed to parse multipart form: {why}")


class _Form:
    """What the parser's calls add up to."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.complete = False
        self._parts = 0
        self._header = (b"", b"")
        self._disposition = b""
        self._name = ""
        self._is_file = False
        self._text = b""
        self._size = 0

    def begin(self) -> None:
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise _bad(f"more than {_MAX_PARTS} parts")
        self._header, self._disposition, self._text, self._size = (b"", b""), b"", b"", 0

    def header_name(self, data: bytes, start: int, end: int) -> None:
        self._header = (self._header[0] + data[start:end], b"")

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._header = (self._header[0], self._header[1] + data[start:end])

    def header_end(self) -> None:
        name, value = self._header
        if name.lower() == b"content-disposition":
            self._disposition = value
        self._header = (b"", b"")

    def headers_end(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        self._is_file = b"filename" in options

    def data(self, data: bytes, start: int, end: int) -> None:
        self._size += end - start
        if self._is_file or not self._name:
            return
        if self._size > _MAX_FIELD_BYTES:
            raise _bad(f"a field is larger than {_MAX_FIELD_BYTES} bytes")
        self._text += data[start:end]

    def end(self) -> None:
        if self._name and self._is_file is (self._name == "file"):
            self.fields.setdefault(self._name, self._size if self._is_file else self._text.decode("utf-8", "replace"))

    def all_read(self) -> None:
        self.complete = True
