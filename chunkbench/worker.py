"""Runs a worker for experiments of a kind: `python -m chunkbench.worker [KIND]`. The default is the first kind."""

from __future__ import annotations

import os

from chunkbench.lifetime import PARENT, end_with_parent

if __name__ == "__main__":
    # Before the import of torch, which takes seconds: the parent may die meanwhile.
    end_with_parent(int(os.environ.get(PARENT, os.getppid())))

    from chunkbench import workloads
    from chunkbench.bench.workers.main import main

    workloads.register()
    main()
