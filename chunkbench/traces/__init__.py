"""Traffic: when requests are due, what their prompts are, how much they ask for. Drawn, or read from a file."""

from chunkbench.traces.arrivals import Arrivals, due_times
from chunkbench.traces.conversations import Conversations, from_conversations
from chunkbench.traces.files import TraceError, read_trace
from chunkbench.traces.formats import Trace, TraceRequest, has_token_ids, read_traffic
from chunkbench.traces.generated import GENERATED, Demand
from chunkbench.traces.lengths import LENGTHS, Lengths, LogNormal
from chunkbench.traces.pace import Pace
from chunkbench.traces.prompts import Prompts, draw_prompts
from chunkbench.traces.replayed import ReplayRequest, from_lengths, from_prompts
from chunkbench.traces.replayed_files import from_token_ids, from_trace, read_replayed
from chunkbench.traces.request import PlannedRequest
from chunkbench.traces.traffic import draw_traffic

__all__ = [
    "GENERATED",
    "LENGTHS",
    "Arrivals",
    "Conversations",
    "Demand",
    "Lengths",
    "LogNormal",
    "Pace",
    "PlannedRequest",
    "Prompts",
    "ReplayRequest",
    "Trace",
    "TraceError",
    "TraceRequest",
    "draw_prompts",
    "draw_traffic",
    "due_times",
    "from_conversations",
    "from_lengths",
    "from_prompts",
    "from_token_ids",
    "from_trace",
    "has_token_ids",
    "read_replayed",
    "read_trace",
    "read_traffic",
]
