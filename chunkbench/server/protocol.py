"""Checks clients' requests, and writes errors, in the format of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, ValidationError, model_validator
from pydantic_core import from_json

from chunkbench.server.constrained import Constraint, ConstraintRefused
from chunkbench.server.constrained.constraint import ANY_OBJECT
from chunkbench.server.engine import Matcher, Request, RequestRefused, Sampling
from chunkbench.server.engine.beams import BeamOptions

MOST_LOGPROBS = 20
"""Maximum number of most probable tokens that a client can ask for, as in vLLM."""
MOST_ANSWERS = 4096
"""Maximum of `n` in a body. The engine usually has a lower limit: the maximum number of sequences in a step."""
MOST_PENALTY = 20
TopCount = Annotated[int, Field(ge=0, le=MOST_LOGPROBS)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
StopString = Annotated[str, Field(min_length=1, max_length=256)]


def _whole(value: Any) -> Any:
    """Turn 16.0 into 16, also in a list, because they are the same number in JSON."""
    if isinstance(value, list):
        return [_whole(part) for part in value] if any(type(part) is float for part in value) else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _as_list(stop: Any) -> Any:
    """Stop strings as a list. An empty string means no stop string."""
    return [stop] * bool(stop) if isinstance(stop, str) else stop


class ApiError(Exception):
    """An error that is sent to the client, with its HTTP status."""

    def __init__(self, message: str, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        kind = {404: "not_found_error", 429: "rate_limit_error"}.get(self.status, "invalid_request_error")
        kind = "server_error" if self.status >= 500 else kind
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


class Fields(BaseModel):
    """A JSON object in the body of a request. null counts as no value.

    An unknown field raises ApiError, unless its name is in `_labels` or its value in `_neutral`.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    _within: ClassVar[str | None] = None
    """Field of the body that holds this object. None: the object is the whole body."""
    _labels: ClassVar[frozenset[str]] = frozenset()
    """Names of unknown fields that are ignored, because they cannot change an answer."""
    _neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Name of an unsupported field -> values that are accepted, because they have no effect."""

    @model_validator(mode="before")
    @classmethod
    def _leave_nulls_out(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: _whole(value) for name, value in given.items() if value is not None}

    @model_validator(mode="after")
    def _refuse_others(self) -> Fields:
        for name, value in (self.model_extra or {}).items():
            if name not in self._labels and not any(_same(value, neutral) for neutral in self._neutral.get(name, ())):
                path = f"{self._within}.{name}" if self._within else name
                message = f"the field {path:.80} = {value!r:.80} is not supported; leave it out"
                raise ApiError(message, param=self._within or name)
        return self


class StreamOptions(Fields):
    _within = "stream_options"
    _labels = frozenset({"include_obfuscation"})

    include_usage: bool = False
    continuous_usage_stats: bool = False
    """If True, every event holds the token counts so far, as `usage`."""


class Message(Fields):
    """A message of a chat. Its content is a text, or a list of parts."""

    _within = "messages"
    _neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **dict.fromkeys(("tool_calls", "annotations"), ([],)),
        **dict.fromkeys(("refusal", "reasoning", "reasoning_content"), ("",)),
    }

    role: Annotated[str, Field(max_length=64)]
    content: str | list[dict[str, Any]] = ""
    name: Annotated[str, Field(max_length=1024)] | None = None

    def plain(self) -> dict[str, str]:
        """The message as a dictionary for a chat template. Raises ApiError if a part is not text."""
        text = self.content
        if isinstance(text, list):
            for part in text:
                if part.get("type") != "text" or not isinstance(part.get("text"), str):
                    message = f"a message has a part of type {part.get('type')!r:.80}; text only"
                    raise ApiError(message, param="messages")
            text = "".join(part["text"] for part in text)
        named = {} if self.name is None else {"name": self.name}
        return {"role": self.role, "content": text, **named}


class JsonSchema(Fields):
    """The field `json_schema` of `response_format`."""

    _within = "response_format"
    _labels = frozenset({"name", "description", "strict"})

    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class ResponseFormat(Fields):
    """A constraint on the answer, as in OpenAI's API."""

    _within = "response_format"

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def constraint(self) -> Constraint | None:
        """The constraint; None if any text is allowed. Raises ConstraintRefused."""
        if self.type == "json_schema":
            if self.json_schema is None:
                raise ConstraintRefused("json_schema is missing")
            return Constraint.of_schema(self.json_schema.schema_)
        return ANY_OBJECT if self.type == "json_object" else None


class StructuredOutputs(Fields):
    """A constraint on the answer, as in vLLM's API. Only one field may be set."""

    _within = "structured_outputs"
    _neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **dict.fromkeys(("disable_fallback", "disable_any_whitespace", "disable_additional_properties"), (False,)),
    }

    regex: str | None = None
    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    choice: list[str] | None = None
    json_object: bool | None = None

    def constraint(self) -> Constraint | None:
        """The constraint; None if any text is allowed. Raises ConstraintRefused."""
        given = [
            *([Constraint.of_regex(self.regex)] if self.regex is not None else []),
            *([Constraint.of_schema(self.json_)] if self.json_ is not None else []),
            *([Constraint.of_choice(self.choice)] if self.choice is not None else []),
            *([ANY_OBJECT] if self.json_object else []),
        ]
        if len(given) > 1:
            raise ConstraintRefused("give one of regex, json, choice and json_object")
        return given[0] if given else None


class RequestBody(Fields):
    """The fields that completions and chat completions have in common. `Sampling` and `Request` of the engine check
    the ranges of numbers."""

    _labels = frozenset(
        {
            *("user", "metadata", "store", "service_tier", "safety_identifier", "request_id", "session_id"),
            *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
            *("parallel_tool_calls", "include_reasoning", "prediction"),
        }
    )
    _neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **dict.fromkeys(("best_of", "repetition_penalty", "stream_interval"), (1,)),
        **dict.fromkeys(("presence_penalty", "frequency_penalty", "min_p", "priority"), (0,)),
        **dict.fromkeys(("include_stop_str_in_output",), (False,)),
        **dict.fromkeys(("return_tokens_as_token_ids", "return_prompt_text", "watermarking"), (False,)),
        **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens"), (True,)),
        **dict.fromkeys(("logit_bias", "vllm_xargs", "kv_transfer_params"), ({},)),
        **dict.fromkeys(("chat_template_kwargs", "mm_processor_kwargs"), ({},)),
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "documents": ([],),
        "modalities": (["text"],),
        "verbosity": ("medium",),
        **dict.fromkeys(("tools", "functions", "bad_words"), ([],)),
        **dict.fromkeys(("tool_choice", "function_call"), ("none", "auto")),
        "suffix": ("",),
    }

    model: Annotated[str, Field(max_length=1024)]
    n: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] = 1
    max_tokens: Count | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    stop: Annotated[list[StopString], Field(max_length=4), BeforeValidator(_as_list)] = []
    stop_token_ids: Annotated[list[NonNegativeInt], Field(max_length=1024)] = []
    ignore_eos: bool = False
    return_token_ids: bool = False
    prompt_logprobs: TopCount | None = None
    use_beam_search: bool = False
    length_penalty: float = 1.0
    early_stopping: bool = False
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    response_format: ResponseFormat = ResponseFormat(type="text")
    structured_outputs: StructuredOutputs = StructuredOutputs()

    def constraint(self) -> tuple[str, Constraint] | None:
        """The constraint on the answer, and the name of the field that holds it. None if any text is allowed. Raises
        ApiError."""
        found: tuple[str, Constraint] | None = None
        asked = ("response_format", self.response_format), ("structured_outputs", self.structured_outputs)
        for field, outputs in asked:
            try:
                constraint = outputs.constraint()
            except ConstraintRefused as error:
                raise ApiError(f"the field {field} is not valid: {error}", param=field) from None
            if constraint is not None and found is not None:
                raise ApiError("give one of response_format and structured_outputs", param=field)
            found = (field, constraint) if constraint is not None else found
        return found

    @property
    def echoes(self) -> bool:
        """Whether the response repeats the prompt before the answer."""
        return False

    @property
    def logprobs_of_answer(self) -> int | None:
        """Number of most probable tokens to list for each token of the answer. None: no log-probabilities."""
        return None

    @property
    def logprobs_of_prompt(self) -> int | None:
        """Number of most probable tokens to list for each token of the prompt. None: no log-probabilities. Raises
        ApiError."""
        if self.prompt_logprobs is not None and self.stream:
            raise ApiError("prompt_logprobs come with whole answers: leave stream out", param="prompt_logprobs")
        return self.prompt_logprobs

    def beams(self) -> BeamOptions | None:
        """The options of a beam search; None without one. Raises ApiError if the body asks for more than it can do."""
        if not self.use_beam_search:
            return None
        given = {
            "stream": self.stream,
            "logprobs": self.logprobs_of_answer is not None,
            "prompt_logprobs": self.logprobs_of_prompt is not None,
            "a constraint": self.constraint() is not None,
        }
        if others := [name for name, one in given.items() if one]:
            raise ApiError(f"use_beam_search goes without {others[0]}: leave one of them out", param="use_beam_search")
        if abs(self.length_penalty) > MOST_PENALTY:
            message = f"length_penalty must lie between -{MOST_PENALTY} and {MOST_PENALTY}, not {self.length_penalty}"
            raise ApiError(message, param="length_penalty")
        return BeamOptions(self.length_penalty, self.early_stopping)

    def request(self, id: str, prompt: list[int], max_tokens: int, matcher: Matcher | None, answer: int) -> Request:
        """Make the engine's request for answer number `answer`, from 0 to `n` - 1. This number is added to the seed.
        Raises ApiError if a number is out of range."""
        seed = None if self.seed is None else self.seed + answer
        try:
            sampling = Sampling(self.temperature, self.top_p, seed, self.top_k)
        except RequestRefused as error:
            raise ApiError(str(error), param=error.field) from None
        beams = self.beams()
        return Request(
            id,
            prompt,
            max_tokens,
            sampling if beams is None else Sampling(),  # a search draws no tokens
            frozenset(self.stop_token_ids),
            self.ignore_eos,
            self.min_tokens,
            self.logprobs_of_answer,
            self.logprobs_of_prompt,
            beams,
            self.cache_salt or "",
            matcher,
        )


class CompletionBody(RequestBody):
    """Body of /v1/completions."""

    _neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {**RequestBody._neutral, "add_special_tokens": (True,)}

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: TopCount | None = None
    echo: bool = False

    @property
    def echoes(self) -> bool:
        return self.echo

    @property
    def logprobs_of_answer(self) -> int | None:
        return self.logprobs

    @property
    def logprobs_of_prompt(self) -> int | None:
        asked = super().logprobs_of_prompt
        given = [count for count in (asked, self.logprobs if self.echo else None) if count is not None]
        return max(given, default=None)

    def prompts(self) -> Sequence[str | list[int]]:
        """The prompts of the body. Each is a text or a list of token ids."""
        prompt = self.prompt
        several = isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list))
        return prompt if several else [prompt]  # type: ignore[return-value, list-item]


class ChatBody(RequestBody):
    """Body of /v1/chat/completions."""

    _neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **RequestBody._neutral,
        **dict.fromkeys(("add_special_tokens", "echo"), (False,)),
    }

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: TopCount = 0

    @property
    def logprobs_of_answer(self) -> int | None:
        if self.top_logprobs and not self.logprobs:
            raise ApiError("top_logprobs needs logprobs: true", param="top_logprobs")
        return self.top_logprobs if self.logprobs else None


class TokenizeBody(Fields):
    """Body of /tokenize, as in vLLM."""

    _neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {"add_generation_prompt": (True,)}

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeBody(Fields):
    """Body of /detokenize, as in vLLM."""

    model: str | None = None
    tokens: list[NonNegativeInt]


B = TypeVar("B", bound=Fields)


def parse(kind: type[B], data: bytes) -> B:
    """Parse a body. Raises ApiError, whose message names the wrong field."""
    try:
        given = from_json(data.removeprefix(b"\xef\xbb\xbf"), allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(f"the body is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise ApiError("the body must be a JSON object")
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = str(first["loc"][0])
        missing = first["type"] == "missing" and len(first["loc"]) == 1
        problem = "is missing" if missing else f"is not valid: {first['msg'][0].lower()}{first['msg'][1:]}"
        raise ApiError(f"the field {field} {problem}", param=field) from None


def _same(value: Any, neutral: Any) -> bool:
    """Whether two values of JSON are equal. In Python, unlike in JSON, false equals 0 and true equals 1."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None) -> dict[str, Any]:
    """The object `usage` of a response. `cached_tokens`: number of prompt tokens that were not computed; None if
    unknown."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": None if cached_tokens is None else {"cached_tokens": cached_tokens},
    }
