"""`python -m chunkbench.worker [KIND]`: a worker for experiments of a kind; the first kind unless another is named."""

from __future__ import annotations

from chunkbench.workers.lifetime import end_with_parent

if __name__ == "__main__":
    end_with_parent()  # before torch is imported, which takes seconds

    from chunkbench import workloads
    from chunkbench.workers.main import main

    workloads.register()
    main()
