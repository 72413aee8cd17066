# my_kernel.py
import torch

from chunkbench.baselines import YES, Answer, Implementation, Inputs, Session, Style


class MySession(Session):
    def __init__(self, inputs: Inputs) -> None:
        self.rows = []
        for row, prompt in enumerate(inputs.prompts):  # token ids, in the order in which sequences were added
            self.rows.append(inputs.keys_values(row, 0, len(prompt)))  # k, v: [n, kv_heads, head_dim]
        self.prompts = list(self.rows)

    def append(self, token_ids, k, v):  # timed apart; k, v: [b, kv_heads, head_dim]
        grown = [(torch.cat([ks, k[i : i + 1]]), torch.cat([vs, v[i : i + 1]])) for i, (ks, vs) in enumerate(self.rows)]
        self.rows = grown

    def decode(self, q, out):  # the timed call; q, out: [b, heads, head_dim]
        for i, (k, v) in enumerate(self.rows):
            per_kv_head = q[i].unflatten(0, (k.shape[1], -1))
            out[i] = torch.nn.functional.scaled_dot_product_attention(
                per_kv_head, k.transpose(0, 1), v.transpose(0, 1)
            ).flatten(0, 1)

    def rewind(self):  # back to the prompts
        self.rows = list(self.prompts)

    def kv_bytes(self):
        return sum(k.nbytes + v.nbytes for k, v in self.rows)


class MyKernel(Implementation):
    id = "my_kernel"
    label = "My kernel"
    # How reports show it; optional.
    style = Style(heading=("My", "kernel"), column_order=500, colour="#AA4499", marker="P")

    def availability(self, device: str) -> Answer:
        return YES if device == "cpu" else Answer(False, "written for CPUs", "run with --device cpu")

    def prepare(self, inputs: Inputs) -> Session:
        return MySession(inputs)
