"""What a client asks for, checked, and the errors it gets, in the form of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError

from chunkbench.serving.engine import Request, Sampling

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "stop": ([], ""),
    "suffix": ("",),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "top_k": (-1, 0),
    "min_p": (0,),
    "min_tokens": (0,),
    "use_beam_search": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
"""Fields that the server lacks -> the values that ask for nothing, which it takes."""
_IGNORED = {"user", "metadata", "safety_identifier", "prompt_cache_key", "request_id"}
"""Fields that change no answer."""


class ApiError(Exception):
    """An answer with an HTTP status of 4xx or 5xx."""

    def __init__(self, message: str, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """The error in OpenAI's form."""
        kind = {404: "not_found_error", 429: "rate_limit_error"}.get(self.status, "invalid_request_error")
        kind = "server_error" if self.status >= 500 else kind
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


class StreamOptions(BaseModel):
    """What a stream carries besides tokens."""

    model_config = ConfigDict(extra="ignore")

    include_usage: bool = False
    continuous_usage_stats: Literal[False] = False


class Message(BaseModel):
    """A message of a chat; its text may come in parts."""

    model_config = ConfigDict(extra="ignore")

    role: str
    content: str | list[dict[str, Any]] = ""

    def plain(self) -> dict[str, str]:
        """Role and text. Raises ApiError for images and other parts."""
        if isinstance(self.content, str):
            return {"role": self.role, "content": self.content}
        for part in self.content:
            if part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise ApiError(f"a message has a part of type {part.get('type')!r}; text only", param="messages")
        return {"role": self.role, "content": "".join(part["text"] for part in self.content)}


class Body(BaseModel):
    """Fields that both kinds of completion take."""

    model_config = ConfigDict(extra="allow")

    model: str
    max_tokens: PositiveInt | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    stop_token_ids: list[NonNegativeInt] = []
    ignore_eos: bool = False
    return_token_ids: bool = False

    def request(self, id: str, prompt: list[int], max_tokens: int) -> Request:
        """The engine's request. Raises ApiError if the sampling is out of range."""
        try:
            sampling = Sampling(self.temperature, self.top_p, self.seed)
        except ValueError as error:
            raise ApiError(str(error)) from None
        return Request(id, prompt, max_tokens, sampling, frozenset(self.stop_token_ids), self.ignore_eos)


class CompletionBody(Body):
    """Body of /v1/completions."""

    prompt: str | list[int] | list[str] | list[list[int]]

    def one_prompt(self) -> str | list[int]:
        """Text or token ids. Raises ApiError for several prompts."""
        prompt = self.prompt
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
            if len(prompt) > 1:
                raise ApiError(f"{len(prompt)} prompts in one request; send one request for each", param="prompt")
            return prompt[0]
        return prompt  # type: ignore[return-value]  # a list of text or of lists was handled above


class ChatBody(Body):
    """Body of /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: PositiveInt | None = None


B = TypeVar("B", bound=Body)


def parse(kind: type[B], raw: Any) -> B:
    """Check a JSON body. A field that is null counts as left out. Raises ApiError that names the field."""
    if not isinstance(raw, dict):
        raise ApiError("the body must be a JSON object")
    given = {name: value for name, value in raw.items() if value is not None}
    try:
        body = kind.model_validate(given, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0]) if first["loc"] else None
        missing = first["type"] == "missing"
        problem = "is missing" if missing else f"is not valid: {first['msg'][0].lower()}{first['msg'][1:]}"
        raise ApiError(f"the field {field} {problem}", param=field) from None
    for name, value in (body.model_extra or {}).items():
        if name not in _IGNORED and not any(value == neutral for neutral in _NEUTRAL.get(name, ())):
            raise ApiError(f"the field {name} = {value!r:.80} is not supported; leave it out", param=name)
    return body


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None) -> dict[str, Any]:
    """Token counts of an answer. `cached_tokens`: tokens of the prompt that were not computed; None: not known."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": None if cached_tokens is None else {"cached_tokens": cached_tokens},
    }
