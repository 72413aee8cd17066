"""Random operations on vLLM's own block manager and on `HashedBlocks`; run by the Python of an environment with vLLM.

Arguments: blocks, tokens of a block, operations, seed. Prints JSON: how often each operation ran, what it found, and
the first difference, or null. vLLM never uses one of its blocks; it has one more here.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

from chunkbench.attention.text import TokenText
from chunkbench.workloads.replay.managers.hashed import HashedBlocks

LONGEST = 60


def main() -> None:
    blocks, size, operations, seed = map(int, sys.argv[1:])
    init_none_hash(sha256)
    spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=8, dtype=torch.float32)
    config = KVCacheConfig(blocks + 1, [], [KVCacheGroupSpec(["layer"], spec)])
    theirs = KVCacheManager(config, max_model_len=1000, scheduler_block_size=size, hash_block_size=size)
    ours = HashedBlocks(blocks, size)
    hasher = get_request_block_hasher(size, sha256)
    chance = random.Random(seed)
    stems = [[chance.randrange(3) for _ in range(LONGEST)] for _ in range(2)]
    live: dict[int, tuple[Request, list[int], int]] = {}  # request, all tokens, prompt
    counts: dict[str, int] = {}
    difference: Any = None

    def note(name: str, amount: int = 1) -> None:
        counts[name] = counts.get(name, 0) + amount

    def differ(what: str, ours_said: Any, theirs_said: Any) -> bool:
        nonlocal difference
        if ours_said != theirs_said:
            difference = [what, ours_said, theirs_said]
        return ours_said != theirs_said

    for number in range(operations):
        what = chance.choice(("allocate", "prefill", "append", "append", "append", "free"))
        if what == "allocate" and len(live) < 8:
            start = chance.choice(stems)[: chance.randrange(1, LONGEST - 20)]
            tokens = start + [chance.randrange(3) for _ in range(20)]
            prompt = len(tokens) - 12
            request = Request(str(number), tokens[:prompt], SamplingParams(max_tokens=99), None, block_hasher=hasher)
            found, cached, _ = theirs.get_computed_blocks(request)
            first = chance.randrange(1, prompt - cached + 1)
            taken = theirs.allocate_slots(request, first, cached, found, full_sequence_must_fit=True)
            said = ours.allocate(number, TokenText(tokens, prompt, len(tokens)), prompt)
            if differ("allocate", said is None, taken is None):
                break
            if said is None:
                note("refused")
                continue
            if differ("cached tokens", said, cached) or differ("first part", ours.extend(number, cached + first), True):
                break
            request.num_computed_tokens = cached + first
            live[number] = request, tokens, prompt
            note("joined")
            note("cached", cached)
        elif what == "prefill" and live:
            name = chance.choice(list(live))
            request, _, prompt = live[name]
            left = prompt - request.num_computed_tokens
            if left > 0:
                count = chance.randrange(1, left + 1)
                taken = theirs.allocate_slots(request, count)
                if differ("part", ours.extend(name, request.num_computed_tokens + count), taken is not None):
                    break
                if taken is not None:
                    request.num_computed_tokens += count
                note("parts" if taken is not None else "refused parts")
        elif what == "append" and live:
            name = chance.choice(list(live))
            request, tokens, prompt = live[name]
            if prompt <= request.num_computed_tokens < len(tokens):
                if request.num_tokens == request.num_computed_tokens:
                    request.append_output_token_ids(tokens[request.num_tokens])
                taken = theirs.allocate_slots(request, 1)
                if differ("append", ours.append([name]), taken is not None):
                    break
                if taken is not None:
                    request.num_computed_tokens += 1
                note("appended" if taken is not None else "refused appends")
        elif what == "free" and live:
            name = chance.choice(list(live))
            request, _, _ = live.pop(name)
            theirs.free(request)
            ours.free(name)
            note("left")
        free = ours.blocks - ours.slots_held // size
        if differ("free blocks", free, theirs.block_pool.get_num_free_blocks()):
            break
    json.dump({"counts": counts, "difference": difference}, sys.stdout)


main()
