"""The requests that a client plans to send."""

from __future__ import annotations

from dataclasses import dataclass

MOST_TOKEN_IDS = 2**31
"""Token ids are below this, also if a model's vocabulary is not known."""


Message = dict[str, str]
"""A message of a chat: its `role` and its `content`."""


@dataclass(frozen=True)
class Chat:
    """Messages of a chat. In a later turn, they follow the messages of the turn before and its answer."""

    messages: tuple[Message, ...]
    word: str = ""
    """Word that is sent before the first message. Later turns do not repeat it."""

    @property
    def sent(self) -> list[Message]:
        """The messages as they are sent."""
        first, *others = self.messages
        return [{**first, "content": self.word + first["content"]}, *others]

    def text(self, answer: str = "") -> str:
        """The messages, and the answer if given, as one text in a simple format. Models have their own templates."""
        answered = [{"role": "assistant", "content": answer}] if answer else []
        return "".join(f"<|{said['role']}|>\n{said['content']}\n" for said in (*self.sent, *answered))

    def after(self, before: Chat, answer: str) -> Chat:
        """These messages after those of the turn `before` and its answer."""
        answered = {"role": "assistant", "content": answer}
        return Chat((*before.messages, answered, *self.messages), self.word)


Prompt = tuple[int, ...] | str | Chat
"""Token ids, text, or messages."""


@dataclass(frozen=True)
class PlannedRequest:
    """A request that a client will send, and its due time."""

    due: float
    """Seconds after the start of the measurement, or after the end of the request `after`."""
    prompt: Prompt
    max_tokens: int
    """Tokens to generate."""
    after: int | None = None
    """Number in the plan of the request that must end before this one is sent. It is smaller than this request's own
    number."""
    exact: bool = True
    """Ask for exactly `max_tokens` tokens. If False, the model may end the answer earlier."""
    regex: str = ""
    """Regular expression that the answer must match; empty: any answer."""
