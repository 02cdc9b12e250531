"""How simulated prompts are made: messages of so many tokens, chained into what routers see and engines hold.

A prompt is made of blocks of 64 tokens; a token has 4 bytes exactly. Messages with the same name are equal, others have
nothing in common. All hashes are those of integers, which do not change from process to process.
"""

from typing import NamedTuple

from scheduler.domain import BLOCK_BYTES, Prompt
from scheduler.simulation.contents import Chain

BYTES_PER_TOKEN = 4
BLOCK_TOKENS = BLOCK_BYTES // BYTES_PER_TOKEN


class Turn(NamedTuple):
    """One request of a session."""

    prompt: Prompt
    """As a router sees it."""
    content: Chain
    """The prompt and its answer, as the engine holds them."""
    prompt_tokens: int
    output_tokens: int
    think_ms: float
    """From the end of the answer before to this request; of the first turn: 0."""


class Session(NamedTuple):
    """Requests of one client, each sent when the one before it is answered and thought about."""

    id: str
    arrives_ms: float
    turns: tuple[Turn, ...]
    tenant: str = ""
    priority: str = "normal"


class Conversation:
    """A growing sequence of messages."""

    def __init__(self) -> None:
        self.tokens = 0
        self._hash = 0
        self._ends: list[int] = []
        self._hashes: list[int] = []
        self._blocks: list[int] = []

    def copy(self) -> "Conversation":
        """One that starts with the same messages."""
        other = Conversation()
        other.tokens, other._hash = self.tokens, self._hash
        other._ends, other._hashes, other._blocks = self._ends[:], self._hashes[:], self._blocks[:]
        return other

    def say(self, name: int, tokens: int) -> None:
        """Add a message.

        Args:
            name: the same name and length after the same messages: the same message.
            tokens: its length, at least 1.
        """
        start, before = self.tokens, hash((self._hash, name))
        self.tokens += tokens
        for number in range(len(self._blocks) + 1, self.tokens // BLOCK_TOKENS + 1):
            self._blocks.append(hash((before, number * BLOCK_TOKENS - start)))
        self._hash = hash((before, tokens))
        self._ends.append(self.tokens)
        self._hashes.append(self._hash)

    def turn(self, answer: int, output_tokens: int, think_ms: float = 0.0) -> Turn:
        """Ask with what was said so far; the answer is then a message of the conversation.

        Args:
            answer: its name.
            output_tokens: its length, at least 1.
            think_ms: see `Turn`.
        """
        ends = tuple(zip([BYTES_PER_TOKEN * end for end in self._ends], self._hashes, strict=True))
        prompt, prompt_tokens = Prompt(tuple(self._blocks), ends), self.tokens
        self.say(answer, output_tokens)
        content = Chain(tuple(self._ends), tuple(self._hashes), self.tokens)
        return Turn(prompt, content, prompt_tokens, output_tokens, think_ms)
