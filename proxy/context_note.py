"""What is said of a request that may be too long for the context it gets. Owns its words, not the estimate."""

import msgspec


class ContextNote(msgspec.Struct, frozen=True):
    """A prompt, and the answer that is wanted, may not fit the context that they get."""

    prompt_tokens: int
    """As estimated."""
    output_tokens: int | None
    """The client's limit; None: it set none."""
    context_tokens: int

    def __str__(self) -> str:
        answer = "" if self.output_tokens is None else f", answer up to {self.output_tokens}"
        return f"prompt about {self.prompt_tokens} tokens{answer}, context {self.context_tokens}"
