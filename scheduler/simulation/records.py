"""What is kept of a simulated request. Knows nothing of how it came about."""

import msgspec


class Record(msgspec.Struct, frozen=True):
    """One request. Times in milliseconds of the simulation's clock."""

    id: str
    tenant: str
    arrived_ms: float
    prompt_tokens: int
    output_tokens: int
    rejected: str = ""
    """Why it was refused; then nothing below means anything."""
    backend: int = -1
    slot: int = -1
    placed_ms: float = 0.0
    """When it was sent to the engine; until then it waited at the router."""
    started_ms: float = 0.0
    """When it got its slot; until then it waited in the engine's own queue."""
    first_token_ms: float = 0.0
    ended_ms: float = 0.0
    cached_tokens: int = 0
    predicted_tokens: int = 0
    """Prompt tokens that the router believed to be cached."""

    @property
    def ttft_ms(self) -> float:
        """From arrival to the first token."""
        return self.first_token_ms - self.arrived_ms

    @property
    def e2e_ms(self) -> float:
        """From arrival to the last token."""
        return self.ended_ms - self.arrived_ms
