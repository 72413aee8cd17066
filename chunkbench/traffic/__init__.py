"""Requests for a server or a replay: due times, prompts and lengths of answers. They are drawn at random or read
from files."""

from chunkbench.traffic.arrivals import Arrivals, due_times
from chunkbench.traffic.formats import read_traffic
from chunkbench.traffic.generated import draw_traffic
from chunkbench.traffic.prompts import Prompts, draw_prompts
from chunkbench.traffic.request import Chat, PlannedRequest, Prompt
from chunkbench.traffic.texts import TextIds, bundled_texts, control, read_texts, text_ids
from chunkbench.traffic.trace import Trace, TraceError, TraceRequest

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
