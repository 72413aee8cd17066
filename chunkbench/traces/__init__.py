"""Traffic: when requests are due, what their prompts are, how much they ask for. Drawn, or read from a file."""

from chunkbench.traces.arrivals import Arrivals, due_times
from chunkbench.traces.files import TraceError, read_trace
from chunkbench.traces.prompts import Prompts, draw_prompts
from chunkbench.traces.request import PlannedRequest

__all__ = [
    "Arrivals",
    "PlannedRequest",
    "Prompts",
    "TraceError",
    "draw_prompts",
    "due_times",
    "read_trace",
]
