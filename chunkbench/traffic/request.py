"""The requests that a client will send."""

from __future__ import annotations

from dataclasses import dataclass

MOST_TOKEN_IDS = 2**31
"""Every token id is below this number, whatever the model is."""


Message = dict[str, str]
"""A message of a chat, with the keys `role` and `content`."""


@dataclass(frozen=True)
class Chat:
    """Messages of a chat. In a later turn of a conversation: only the new messages."""

    messages: tuple[Message, ...]
    word: str = ""
    """Text to put before the first message. Later turns do not repeat it."""

    @property
    def sent(self) -> list[Message]:
        """The messages as a client sends them, with `word`."""
        first, *others = self.messages
        return [{**first, "content": self.word + first["content"]}, *others]

    def text(self, answer: str = "") -> str:
        """The messages as one text in a simple format, followed by the answer. Models use other formats."""
        answered = [{"role": "assistant", "content": answer}] if answer else []
        return "".join(f"<|{said['role']}|>\n{said['content']}\n" for said in (*self.sent, *answered))

    def after(self, before: Chat, answer: str) -> Chat:
        """A chat of all turns so far: the messages of `before`, the answer to them, then the messages of this turn."""
        answered = {"role": "assistant", "content": answer}
        return Chat((*before.messages, answered, *self.messages), self.word)


Prompt = tuple[int, ...] | str | Chat
"""A prompt as token ids, as text, or as messages."""


@dataclass(frozen=True)
class PlannedRequest:
    """A request that a client will send."""

    due: float
    """Seconds after the start of the measurement. If `after` is set: seconds after the end of that request."""
    prompt: Prompt
    max_tokens: int
    """Maximum number of tokens of the answer."""
    after: int | None = None
    """Index in the plan of an earlier request, which must end before this one is sent."""
    exact: bool = True
    """True: ask for exactly `max_tokens` tokens. False: the model may end the answer earlier."""
    regex: str = ""
    """Regular expression that the answer must match. Empty: any text is allowed."""
    answers: int = 1
    """Number of answers to the prompt. Several answers are sampled at temperature 1, one answer is greedy."""
    beams: bool = False
    """Whether beam search finds the answers, which then come whole, not as a stream."""

    @property
    def asked_tokens(self) -> int:
        """Maximum number of tokens of all answers."""
        return self.answers * self.max_tokens
