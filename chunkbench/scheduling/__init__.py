"""Which sequences run: admission, order of the queue, batch and budget, preemption. Above any cache manager."""

from chunkbench.scheduling.entry import Entry
from chunkbench.scheduling.orders import ORDERS, Order
from chunkbench.scheduling.scheduler import Piece, Rules, Scheduler, Step

__all__ = ["ORDERS", "Entry", "Order", "Piece", "Rules", "Scheduler", "Step"]
