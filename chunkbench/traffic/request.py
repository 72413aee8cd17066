"""A request before it is sent."""

from __future__ import annotations

from dataclasses import dataclass

MOST_TOKEN_IDS = 2**31
"""Token ids are below this, also where a model's vocabulary is not known."""


Message = dict[str, str]
"""A message of a chat: its `role` and its `content`."""


@dataclass(frozen=True)
class Chat:
    """Messages of a chat. In a request behind another one, they follow that one's messages and its answer."""

    messages: tuple[Message, ...]
    word: str = ""
    """Sent in front of the first message, and not repeated by the turns behind this one."""

    @property
    def sent(self) -> list[Message]:
        """The messages as they are sent."""
        first, *others = self.messages
        return [{**first, "content": self.word + first["content"]}, *others]

    def text(self, answer: str = "") -> str:
        """The messages, and maybe the answer, as one text. Models have templates of their own."""
        answered = [{"role": "assistant", "content": answer}] if answer else []
        return "".join(f"<|{said['role']}|>\n{said['content']}\n" for said in (*self.sent, *answered))

    def after(self, before: Chat, answer: str) -> Chat:
        """These messages behind a whole turn."""
        answered = {"role": "assistant", "content": answer}
        return Chat((*before.messages, answered, *self.messages), self.word)


Prompt = tuple[int, ...] | str | Chat
"""Token ids, text, or messages."""


@dataclass(frozen=True)
class PlannedRequest:
    """What a client will send, and when."""

    due: float
    """Seconds after the start of the measurement, or after the end of the request `after`."""
    prompt: Prompt
    max_tokens: int
    """Tokens to generate."""
    after: int | None = None
    """Number in the plan of the request that has to end first; it comes before this one."""
    exact: bool = True
    """Ask for `max_tokens` tokens; else for an answer that ends where the model ends it, or there."""
    regex: str = ""
    """What the answer has to match; empty: any answer."""
