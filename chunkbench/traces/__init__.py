"""Traffic: when requests are due, what their prompts are, how much they ask for. Drawn, or read from a file."""

from chunkbench.traces.arrivals import Arrivals, due_times
from chunkbench.traces.formats import read_traffic
from chunkbench.traces.prompts import Prompts, draw_prompts
from chunkbench.traces.request import Chat, PlannedRequest, Prompt
from chunkbench.traces.text_ids import TextIds, text_ids
from chunkbench.traces.texts import bundled_texts, control, read_texts
from chunkbench.traces.trace import Trace, TraceError, TraceRequest
from chunkbench.traces.traffic import draw_traffic

__all__ = [
    "Arrivals",
    "Chat",
    "PlannedRequest",
    "Prompt",
    "Prompts",
    "TextIds",
    "Trace",
    "TraceError",
    "TraceRequest",
    "bundled_texts",
    "control",
    "draw_prompts",
    "draw_traffic",
    "due_times",
    "read_texts",
    "read_traffic",
    "text_ids",
]
