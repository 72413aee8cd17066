"""PagedAttn and PagedAttn*: places for paged kernels of our own, which this version does not have.

The paper's PagedAttn is vLLM's kernel: on a CPU `vllm_paged_attn` and `vllm_paged_attn_star` run the real one.
"""

from __future__ import annotations

from chunkbench.baselines.contract import Answer, Implementation, Inputs, Session


class PagedAttn(Implementation):
    id = "paged_attn"
    label = "PagedAttn"

    def availability(self, device: str) -> Answer:
        return Answer(False, "this version has no paged kernel of its own", f"see vllm_{self.id}, vLLM's CPU kernel")

    def prepare(self, inputs: Inputs) -> Session:
        raise NotImplementedError(f"{self.id} is not part of this version")


class PagedAttnStar(PagedAttn):
    id = "paged_attn_star"
    label = "PagedAttn*"
    shares_storage = True
