"""Which sequences run: admission, order of the queue, batch and budget, preemption. Above any cache manager."""

from chunkbench.server.scheduling.entry import Entry
from chunkbench.server.scheduling.orders import ORDERS, Order
from chunkbench.server.scheduling.scheduler import Piece, Rules, Scheduler, Step

__all__ = ["ORDERS", "Entry", "Order", "Piece", "Rules", "Scheduler", "Step"]
