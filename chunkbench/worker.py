"""`python -m chunkbench.worker [KIND]` runs a worker for experiments of this kind; the default is the first kind."""

from __future__ import annotations

from chunkbench.workers.lifetime import end_with_parent

if __name__ == "__main__":
    end_with_parent()  # before the import of torch, which takes seconds: the parent may die meanwhile

    from chunkbench import workloads
    from chunkbench.workers.main import main

    workloads.register()
    main()
