"""The facts about one request that a client sent to a server."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat

from chunkbench.bench.experiment.terms import Count
from chunkbench.bench.store.results import Facts

RequestStatus = Literal["ok", "wrong", "refused", "error", "timeout", "cancelled"]


class RequestResult(Facts):
    """One request. Times in seconds after the start of the measurement, on the client's clock."""

    due: NonNegativeFloat
    """When it should be sent. With closed-loop clients: when the client was free."""
    sent: NonNegativeFloat | None = None
    """When it left the client; None if no connection came about."""
    first: NonNegativeFloat | None = None
    """When its first token arrived."""
    last: NonNegativeFloat | None = None
    """When its last token arrived."""
    prompt_tokens: Count | None
    """None: the prompt is text, and the server does not say how many tokens it makes of it."""
    asked_tokens: Count
    """Tokens to generate, at most where the model ends the answer."""
    tokens: Count = 0
    """Tokens that arrived."""
    cached_tokens: Count | None = None
    """Prompt tokens that the server did not compute; None if it does not say."""
    status: RequestStatus = "ok"
    """ok: answered; wrong: the server's token counts are not those asked for; refused: an answer of status 4xx;
    error: another failure; timeout: no whole answer in time; cancelled: the client was interrupted."""
    reason: str = ""
