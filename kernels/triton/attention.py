"""Decode attention in Triton: partial results over runs of chunks, their merge, and the append of a token.

Two launches compute a step. `partial_results` runs every item (see `planner`) once per KV head, for shared and private
runs. An item writes the output if its rows have no other item. All other items write a partial result `(O, lse)` in
float32. lse is the base-2 logarithm of the softmax denominator. `merge_rows` attends to the tail of a row, if the plan
has one (the sequence-first phase, section 3.2 of the paper), and then merges the row's partial results.

With OVERLAP (Hopper and later), the second launch may begin when all blocks of the first launch have started. The
blocks of the second launch first attend to tails. They wait for the end of the first launch only before they read
partial results.

No argument changes from step to step: the kernels read lengths, items and the number of items from memory. So a
captured launch stays correct.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from chunkbench.draft import MOST_ROWS
from chunkbench.kernels.items import ITEM_COLUMNS
from chunkbench.kv_dtype import KV_DTYPES

# Kernels can read no other global names than such constants.
FIRST_CHUNK, CHUNK_COUNT, FIRST_ROW, ROW_COUNT = (
    tl.constexpr(ITEM_COLUMNS.index(name)) for name in ("first_chunk", "chunk_count", "first_row", "row_count")
)
TAIL_ROW, BEFORE, FIRST_PARTIAL, FIRST_FOLD, FOLDS = (
    tl.constexpr(ITEM_COLUMNS.index(name)) for name in ("tail_row", "before", "first_partial", "first_fold", "folds")
)
ITEM_WIDTH = tl.constexpr(len(ITEM_COLUMNS))
SAME, INT8, UINT8, FP8 = (tl.constexpr(number) for number in range(len(KV_DTYPES)))  # values of FORM
CHAINS, TREES = tl.constexpr(1), tl.constexpr(2)  # values of DRAFTS; 0: each sequence has one row
_ROWS_OF_DRAFT = tl.constexpr(MOST_ROWS)
_ROUND = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it rounds a small float32 to an integer, ties to even
_FP8_SCALE = tl.constexpr(256.0)  # the bits of E4M3 as those of float16 are a number 2^8 times too small


@triton.jit
def _widen(stored, kind, FORM: tl.constexpr):
    """K or V as loaded, as numbers of the dtype `kind`; scales are applied later. Exact, also in bfloat16."""
    if FORM == FP8:
        bits = stored.to(tl.uint16)
        half = (((bits & 0x7F) << 7) | ((bits & 0x80) << 8)).to(tl.float16, bitcast=True)
        # 0x7f is NaN in E4M3, and would be 480.
        return tl.where((bits & 0x7F) == 0x7F, float("nan"), half).to(kind)
    # By way of float32, because Triton's interpreter casts integers to bfloat16 wrongly.
    return stored if FORM == SAME else stored.to(tl.float32).to(kind)


@triton.jit
def _floats(pointers, number: tl.constexpr, mask, TILE: tl.constexpr):
    """The float32 with this number that follows each vector; `pointers` and `mask` `[TILE, 1]`."""
    return tl.reshape(tl.load(pointers.to(tl.pointer_type(tl.float32)) + number, mask=mask, other=0.0), (TILE,))


@triton.jit
def _narrow(x, FORM: tl.constexpr):
    """Vectors `[n, D]` in 8 bits, as `eight_bits.rounded` does: numbers (int32), scales and zero points `[n]`."""
    x = x.to(tl.float32)
    bad = tl.sum(x * 0.0, 1)  # NaN if a number is NaN or infinite; tl.max ignores NaN
    scale, zero = bad, bad * 0.0
    if FORM == INT8:
        peak = tl.max(tl.abs(x), 1)
        lift = tl.where(peak < 1e-30, 1.2676506002282294e30, 1.0)  # 2^100: 127 / peak must be finite
        inverse = tl.where(peak > 0.0, tl.div_rn(peak * 0.0 + 127.0, peak * lift), 0.0)
        numbers = ((x * lift[:, None] * inverse[:, None] + _ROUND) - _ROUND).to(tl.int32)
        scale = tl.div_rn(peak, peak * 0.0 + 127.0) + bad
    elif FORM == UINT8:
        least, most = tl.min(x, 1), tl.max(x, 1)
        most_value = least * 0.0 + 255.0
        step = tl.div_rn(most, most_value) - tl.div_rn(least, most_value)
        step = tl.where(step > 0.0, step, tl.where(least == 0.0, 1.0, tl.abs(least)))
        zero = tl.div_rn(-least, step)
        numbers = tl.div_rn(x, tl.broadcast_to(step[:, None], x.shape)) + zero[:, None]
        numbers = ((tl.minimum(tl.maximum(numbers, 0.0), 255.0) + _ROUND) - _ROUND).to(tl.int32)
        scale = step + bad
    else:
        bits = x.to(tl.int32, bitcast=True)
        magnitude = bits & 0x7FFFFFFF
        size = magnitude.to(tl.float32, bitcast=True)
        # Below 2^-6 numbers are multiples of 2^-9, which is the step of float32 at 2^14.
        small = (size + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
        large = (magnitude + 0x7FFFF + ((magnitude >> 20) & 1) - (120 << 23)) >> 20
        numbers = tl.where(size < 0.015625, small, tl.where(size >= 448.0, 0x7E, large))
        numbers = tl.where(size != size, 0x7F, numbers) | ((bits >> 24) & 0x80)
    return numbers, scale, zero


@triton.jit
def _store(at, target, x, valid, D: tl.constexpr, FORM: tl.constexpr):
    """Store vectors x `[n, D]` at `at + target`, target and valid `[n, 1]`."""
    dims = tl.arange(0, D)
    if FORM == SAME:
        tl.store(at + target + dims[None, :], x, mask=valid)
    else:
        numbers, scale, zero = _narrow(x, FORM)
        tl.store(at + target + dims[None, :], numbers.to(at.dtype.element_ty), mask=valid)
        floats = (at + target + D).to(tl.pointer_type(tl.float32))
        if FORM != FP8:
            tl.store(floats, scale[:, None], mask=valid)
        if FORM == UINT8:
            tl.store(floats + 1, zero[:, None], mask=valid)


@triton.jit
def _attend(
    q,  # [ROWS, D]
    q_rope,  # [ROWS, ROPE], if ROPE
    top,  # [ROWS] largest score so far, in powers of two
    total,  # [ROWS] sum of weights so far
    acc,  # [ROWS, D] float32
    keys,
    values,
    key_places,
    value_places,
    first,  # index of the run's first chunk
    tokens,  # number of tokens in the run
    inner,  # offset of this KV head in a chunk of K
    value_inner,  # the same in V
    scale,
    limits,  # if DRAFTS: [ROWS] number of tokens from the beginning of the run on up to those that the row cannot read
    window,
    hidden,
    row,  # [ROWS] index of each row
    DRAFTS: tl.constexpr,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    D: tl.constexpr,
    ROPE: tl.constexpr,
    LATENT: tl.constexpr,
    TOKEN_STEP: tl.constexpr,
    VALUE_STEP: tl.constexpr,
    UNIT: tl.constexpr,
    FORM: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Attend to one more run of chunks. Places count in units of 16 bytes, so the compiler knows that loads are
    aligned.

    A key has D numbers and then ROPE more. With LATENT, its first D numbers are the value, too."""
    offsets = tl.arange(0, TILE)
    dims = tl.arange(0, D)
    for start in tl.range(0, tokens, TILE, num_stages=STAGES):
        valid = start + offsets < tokens
        if CHUNK >= TILE:
            chunk = first + start // CHUNK
            key = tl.load(key_places + chunk) * UNIT + inner
            value = key if LATENT else tl.load(value_places + chunk) * UNIT + value_inner
            slot = (start % CHUNK + offsets)[:, None]
        else:
            chunk = first + (start + offsets) // CHUNK
            key = (tl.load(key_places + chunk, mask=valid, other=0) * UNIT + inner)[:, None]
            value = (
                key if LATENT else (tl.load(value_places + chunk, mask=valid, other=0) * UNIT + value_inner)[:, None]
            )
            slot = ((start + offsets) % CHUNK)[:, None]
        token, value_token = slot * TOKEN_STEP, slot * VALUE_STEP
        k = _widen(tl.load(keys + key + (token + dims[None, :]), mask=valid[:, None], other=0), q.dtype, FORM)
        if LATENT:
            v = k
        else:
            inside = value_token + dims[None, :]
            v = _widen(tl.load(values + value + inside, mask=valid[:, None], other=0), q.dtype, FORM)
        scores = tl.dot(q, tl.trans(k))
        if ROPE > 0:
            inside = token + D + tl.arange(0, ROPE)[None, :]
            rotary = tl.load(keys + key + inside, mask=valid[:, None], other=0)
            scores = tl.dot(q_rope, tl.trans(rotary), scores)
        scores *= scale
        if FORM == FP8:
            scores *= _FP8_SCALE
        elif FORM != SAME:
            after = keys + key + token + D
            if FORM == UINT8:
                zeros = _floats(after, 1, valid[:, None], TILE)
                scores -= tl.sum(q.to(tl.float32), 1)[:, None] * zeros[None, :] * scale
            scores *= _floats(after, 0, valid[:, None], TILE)[None, :]
        seen = valid[None, :]
        if DRAFTS > 0:
            after = limits[:, None] - 1 - (start + offsets)[None, :]
            seen = seen & (after >= 0) & (after < window)
            if DRAFTS == TREES:
                words = hidden + (row * (_ROWS_OF_DRAFT // 32))[:, None] + (after >> 5)
                bits = tl.load(words, mask=seen & (after < _ROWS_OF_DRAFT), other=0)
                seen = seen & (((bits >> (after & 31)) & 1) == 0)
        scores = tl.where(seen, scores, float("-inf"))
        peak = tl.maximum(top, tl.max(scores, 1))
        safe = tl.where(peak == float("-inf"), 0.0, peak)
        weights = tl.exp2(scores - safe[:, None])
        shrink = tl.exp2(top - safe)
        total = total * shrink + tl.sum(weights, 1)
        acc *= shrink[:, None]
        if FORM == FP8:
            weights *= _FP8_SCALE
        elif FORM != SAME:
            after = values + value + value_token + D
            weights *= _floats(after, 0, valid[:, None], TILE)[None, :]
            if FORM == UINT8:  # of the rounded weights, which the product takes
                zeros = _floats(after, 1, valid[:, None], TILE)
                acc -= tl.sum(weights.to(v.dtype).to(tl.float32) * zeros[None, :], 1)[:, None]
        acc = tl.dot(weights.to(v.dtype), v, acc)
        top = peak
    return top, total, acc


@triton.jit
def _fold(
    top,
    total,
    acc,
    partial_out,
    partial_lse,
    folds,
    first,
    count,
    head,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    D: tl.constexpr,
    FOLD: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Merge `count` partial results of one row, FOLD at a time."""
    entries = tl.arange(0, FOLD)
    lanes = tl.arange(0, ROWS)
    dims = tl.arange(0, D)
    slot = tl.load(folds + first + entries, mask=entries < count, other=0).to(tl.int64)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    for start in range(0, count, FOLD):
        present = start + entries < count
        index = slot[:, None] * HEADS + head * GROUP + lanes[None, :]
        valid = present[:, None] & (lanes < GROUP)[None, :]
        # Bypass the L1 cache: other multiprocessors wrote these, perhaps while this block ran.
        lse = tl.load(partial_lse + index, mask=valid, other=float("-inf"), cache_modifier=".cg")
        part = tl.load(
            partial_out + index[:, :, None] * D + dims[None, None, :],
            mask=valid[:, :, None],
            other=0.0,
            cache_modifier=".cg",
        )
        following = start + FOLD + entries
        slot = tl.load(folds + first + following, mask=following < count, other=0).to(tl.int64)
        peak = tl.maximum(top, tl.max(lse, 0))
        safe = tl.where(peak == float("-inf"), 0.0, peak)
        weights = tl.exp2(lse - safe[None, :])
        shrink = tl.exp2(top - safe)
        total = total * shrink + tl.sum(weights, 0)
        acc = acc * shrink[:, None] + tl.sum(weights[:, :, None] * part, 0)
        top = peak
    return top, total, acc


@triton.jit
def _run_item(
    head,
    first,
    length,  # number of tokens of the item
    position,
    positions,
    before,
    slot,
    q,
    out,
    q_row,
    q_head,
    out_row,
    out_head,
    scale,
    keys,
    values,
    key_places,
    value_places,
    order,
    reads,
    window,
    hidden,
    partial_out,
    partial_lse,
    row_lse,
    DRAFTS: tl.constexpr,
    LSE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    D: tl.constexpr,
    ROPE: tl.constexpr,
    LATENT: tl.constexpr,
    TOKEN_STEP: tl.constexpr,
    VALUE_STEP: tl.constexpr,
    HEAD_STEP: tl.constexpr,
    VALUE_HEAD_STEP: tl.constexpr,
    UNIT: tl.constexpr,
    FORM: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Run one item for one KV head. Lane i of the tile is query head i % GROUP of the item's position i // GROUP."""
    lanes = tl.arange(0, ROWS)
    dims = tl.arange(0, D)
    place = lanes // GROUP
    valid = place < positions
    row = tl.load(order + position + place, mask=valid, other=0).to(tl.int64)
    lane_head = head * GROUP + lanes % GROUP
    of_lane = q + (row * q_row + lane_head * q_head)[:, None]
    query = tl.load(of_lane + dims[None, :], mask=valid[:, None], other=0.0)
    query_rope = query
    if ROPE > 0:
        query_rope = tl.load(of_lane + D + tl.arange(0, ROPE)[None, :], mask=valid[:, None], other=0.0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    limits = lanes
    if DRAFTS > 0:
        limits = tl.load(reads + row, mask=valid, other=0) - before * CHUNK
    top, total, acc = _attend(
        query, query_rope, top, total, acc, keys, values, key_places, value_places, first, length, head * HEAD_STEP,
        head * VALUE_HEAD_STEP, scale, limits, window, hidden, row, DRAFTS, CHUNK, TILE, D, ROPE, LATENT, TOKEN_STEP,
        VALUE_STEP, UNIT, FORM, STAGES,
    )  # fmt: skip
    # A row may read nothing of a run that others read. This keeps its partial result zero instead of NaN.
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    if slot < 0:
        target = out + (row * out_row + lane_head * out_head)[:, None] + dims[None, :]
        tl.store(target, acc.to(out.dtype.element_ty), mask=valid[:, None])
        if LSE:
            tl.store(row_lse + row * HEADS + lane_head, top + tl.log2(total), mask=valid)
    else:
        index = (slot + place).to(tl.int64) * HEADS + lane_head
        tl.store(partial_out + index[:, None] * D + dims[None, :], acc, mask=valid[:, None])
        tl.store(partial_lse + index, top + tl.log2(total), mask=valid)


@triton.jit
def partial_results(
    q,  # [b, HEADS, D], rows q_row and heads q_head elements apart
    out,
    q_row,
    q_head,
    out_row,
    out_head,
    scale,  # of scores, times log2(e)
    keys,  # chunks at keys + place * UNIT; heads HEAD_STEP and tokens TOKEN_STEP elements apart
    values,
    key_places,
    value_places,
    items,  # [items] of planner.ITEM; no rows: no item
    order,  # [positions] row of each position
    tokens,  # if not DRAFTS: [b] tokens in the last chunk of each row
    reads,  # if DRAFTS: [b] number of tokens of the row's sequence up to those that the row cannot read
    window,  # if DRAFTS: largest number of tokens that a row reads
    hidden,  # if TREES: [b, 8] bit i of the row's bits: it does not read the token that i of these tokens follow
    partial_out,  # [slots, HEADS, D]
    partial_lse,  # [slots, HEADS]
    row_lse,  # if LSE: [b, HEADS] base-2 logarithm of the sum of exponentials of each row's scores
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
    NARROW: tl.constexpr,  # lanes of the small tile
    WIDE: tl.constexpr,  # lanes of the large tile, 0 if no item needs it
    NARROW_TILE: tl.constexpr,  # tokens of a tile and stages, with the small tile
    NARROW_STAGES: tl.constexpr,
    TILE: tl.constexpr,  # tokens of a tile and stages, with the large tile
    STAGES: tl.constexpr,
    D: tl.constexpr,
    ROPE: tl.constexpr,  # numbers of q and of K behind the first D
    LATENT: tl.constexpr,  # whether the first D numbers of K are V
    TOKEN_STEP: tl.constexpr,
    VALUE_STEP: tl.constexpr,
    HEAD_STEP: tl.constexpr,
    VALUE_HEAD_STEP: tl.constexpr,
    UNIT: tl.constexpr,
    FORM: tl.constexpr,  # how K and V are stored: SAME, INT8, UINT8 or FP8
    DRAFTS: tl.constexpr,
    LSE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Run all items. Grid: (capacity of items) x (KV heads). The heads of an item start together, and expensive items
    start first."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    item = tl.program_id(0) // (HEADS // GROUP)
    head = tl.program_id(0) % (HEADS // GROUP)
    # Loaded together: where the caches are cold, a load that needs another one waits a microsecond for it.
    entry = items + item * ITEM_WIDTH
    first = tl.load(entry + FIRST_CHUNK)
    chunks = tl.load(entry + CHUNK_COUNT)
    position = tl.load(entry + FIRST_ROW)
    positions = tl.load(entry + ROW_COUNT)
    tail = tl.load(entry + TAIL_ROW)
    before = tl.load(entry + BEFORE)
    slot = tl.load(entry + FIRST_PARTIAL)
    if positions > 0:
        if DRAFTS > 0:
            length = tl.load(reads + tail, mask=tail >= 0, other=(before + chunks) * CHUNK) - before * CHUNK
        else:
            length = (chunks - 1) * CHUNK + tl.load(tokens + tail, mask=tail >= 0, other=CHUNK)
        if WIDE > 0 and positions * GROUP > NARROW:
            _run_item(
                head, first, length, position, positions, before, slot, q, out, q_row, q_head, out_row, out_head, scale,
                keys, values, key_places, value_places, order, reads, window, hidden, partial_out, partial_lse,
                row_lse, DRAFTS, LSE,
                HEADS, GROUP, CHUNK, WIDE, TILE, D, ROPE, LATENT, TOKEN_STEP, VALUE_STEP, HEAD_STEP,
                VALUE_HEAD_STEP, UNIT, FORM, STAGES,
            )  # fmt: skip
        else:
            _run_item(
                head, first, length, position, positions, before, slot, q, out, q_row, q_head, out_row, out_head, scale,
                keys, values, key_places, value_places, order, reads, window, hidden, partial_out, partial_lse,
                row_lse, DRAFTS, LSE,
                HEADS, GROUP, CHUNK, NARROW, NARROW_TILE, D, ROPE, LATENT, TOKEN_STEP, VALUE_STEP, HEAD_STEP,
                VALUE_HEAD_STEP, UNIT, FORM, NARROW_STAGES,
            )  # fmt: skip


@triton.jit
def _first_lanes(x, FEW: tl.constexpr):
    """The first FEW of the lanes of x [LANES, n]."""
    blocks = tl.reshape(x, (x.shape[0] // FEW, FEW, x.shape[1]))
    return tl.sum(tl.where(tl.arange(0, x.shape[0] // FEW)[:, None, None] == 0, blocks, 0.0), 0)


@triton.jit
def merge_rows(
    q,
    out,
    q_row,
    q_head,
    out_row,
    out_head,
    scale,
    keys,
    values,
    key_places,
    value_places,
    rows,  # [b] of planner.ITEM: first fold, folds, chunks of the tail
    folds,  # slots of partial results, row by row
    tokens,
    reads,
    window,
    hidden,
    lost,  # if COMPENSATED: [b] index of the sums of the tokens that a row lost, -1 if there are none
    shares,  # [b] factors that turn sums into means
    biases,  # [b] numbers that are added to the scores of means, in powers of two
    sums,  # [entries, .., 2, D] float32, of this layer's first KV head; entries sum_step apart
    sum_step,
    partial_out,
    partial_lse,
    row_lse,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a program: those of a KV head, or fewer (`constants.merged_heads`)
    CHUNK: tl.constexpr,
    LANES: tl.constexpr,
    TILE: tl.constexpr,
    D: tl.constexpr,
    ROPE: tl.constexpr,
    LATENT: tl.constexpr,
    TOKEN_STEP: tl.constexpr,
    VALUE_STEP: tl.constexpr,
    HEAD_STEP: tl.constexpr,
    VALUE_HEAD_STEP: tl.constexpr,
    UNIT: tl.constexpr,
    FORM: tl.constexpr,
    FOLD: tl.constexpr,
    DRAFTS: tl.constexpr,
    COMPENSATED: tl.constexpr,
    LSE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Merge the partial results of each row, and a token with the means of those that it lost. Grid: (rows of q) x (KV
    heads). Skips rows whose output an item has written."""
    row = tl.program_id(0) // (HEADS // GROUP)
    head = tl.program_id(0) % (HEADS // GROUP)
    entry = rows + row * ITEM_WIDTH
    first = tl.load(entry + FIRST_FOLD)
    count = tl.load(entry + FOLDS)
    tail_first = tl.load(entry + FIRST_CHUNK)
    tail_chunks = tl.load(entry + CHUNK_COUNT)
    if count + tail_chunks > 0:
        # A matrix instruction has 16 lanes; partial results need as many as there are heads.
        FEW: tl.constexpr = triton.next_power_of_2(GROUP)
        dims = tl.arange(0, D)
        top = tl.full([FEW], float("-inf"), tl.float32)
        total = tl.zeros([FEW], tl.float32)
        acc = tl.zeros([FEW, D], tl.float32)
        # Keys with ROPE have no tails (`planner.Shape.tail_tokens`).
        if (ROPE == 0) & (tail_chunks > 0):
            lanes = tl.arange(0, LANES)
            index = row.to(tl.int64) * q_row + (head * GROUP + lanes).to(tl.int64) * q_head
            query = tl.load(q + index[:, None] + dims[None, :], mask=(lanes < GROUP)[:, None], other=0.0)
            if DRAFTS > 0:
                length = tl.load(reads + row) - tl.load(entry + BEFORE) * CHUNK
            else:
                length = (tail_chunks - 1) * CHUNK + tl.load(tokens + row)
            limits = lanes * 0 + length
            tail_top, tail_total, tail_acc = _attend(
                query, query, tl.full([LANES], float("-inf"), tl.float32), tl.zeros([LANES], tl.float32),
                tl.zeros([LANES, D], tl.float32), keys, values, key_places, value_places, tail_first, length,
                head * HEAD_STEP, head * VALUE_HEAD_STEP, scale, limits, window, hidden, lanes * 0 + row, DRAFTS, CHUNK,
                TILE, D, 0, False, TOKEN_STEP, VALUE_STEP, UNIT, FORM, 1,
            )  # fmt: skip
            top = tl.reshape(_first_lanes(tail_top[:, None], FEW), (FEW,))
            total = tl.reshape(_first_lanes(tail_total[:, None], FEW), (FEW,))
            acc = _first_lanes(tail_acc, FEW)
        if COMPENSATED:
            of_means = tl.load(lost + row)
            if of_means >= 0:
                heads = tl.arange(0, FEW)
                mean = sums + of_means.to(tl.int64) * sum_step + head * (2 * D) + dims
                share = tl.load(shares + row)
                at = row.to(tl.int64) * q_row + (head * GROUP + heads).to(tl.int64) * q_head
                few_q = tl.load(q + at[:, None] + dims[None, :], mask=(heads < GROUP)[:, None], other=0.0)
                score = tl.sum(few_q.to(tl.float32) * (tl.load(mean) * share)[None, :], 1) * scale
                score += tl.load(biases + row)
                peak = tl.maximum(top, score)
                shrink, weight = tl.exp2(top - peak), tl.exp2(score - peak)
                total = total * shrink + weight
                acc = acc * shrink[:, None] + weight[:, None] * (tl.load(mean + D) * share)[None, :]
                top = peak
        top, total, acc = _fold(
            top, total, acc, partial_out, partial_lse, folds, first, count, head,
            HEADS, GROUP, FEW, D, FOLD, OVERLAP,
        )  # fmt: skip
        few = tl.arange(0, FEW)
        target = out + row.to(tl.int64) * out_row + ((head * GROUP + few).to(tl.int64) * out_head)[:, None]
        if LSE:
            at = row_lse + row.to(tl.int64) * HEADS + head * GROUP + few
            tl.store(at, top + tl.log2(total), mask=few < GROUP)
        total = tl.where(few < GROUP, total, 1.0)
        tl.store(target + dims[None, :], (acc / total[:, None]).to(out.dtype.element_ty), mask=(few < GROUP)[:, None])
    elif OVERLAP:
        tl.extra.cuda.gdc_wait()  # the launch after this one must not begin before the first one has ended


@triton.jit
def append_tokens(
    k,  # [b, KV_HEADS, D + ROPE], contiguous
    v,  # [b, KV_HEADS, D], contiguous; not read with LATENT
    keys,
    values,
    tail_keys,  # [b] places of the rows' last chunks
    tail_values,
    tokens,  # [b] tokens in the last chunks; the kernel adds one if not COUNTED
    KV_HEADS: tl.constexpr,
    LANES: tl.constexpr,  # KV heads, rounded up to a power of two
    CHUNK: tl.constexpr,
    D: tl.constexpr,
    ROPE: tl.constexpr,
    LATENT: tl.constexpr,
    TOKEN_STEP: tl.constexpr,
    VALUE_STEP: tl.constexpr,
    HEAD_STEP: tl.constexpr,
    VALUE_HEAD_STEP: tl.constexpr,
    UNIT: tl.constexpr,
    FORM: tl.constexpr,
    COUNTED: tl.constexpr,
):
    """Append one token to each row. In the first layer, where COUNTED is false, also count the token. Grid: rows."""
    row = tl.program_id(0)
    slot = tl.load(tokens + row) - COUNTED
    heads = tl.arange(0, LANES)[:, None]
    dims = tl.arange(0, D)[None, :]
    valid = heads < KV_HEADS
    which = row.to(tl.int64) * KV_HEADS + heads
    source = k + which * (D + ROPE)
    at, target = keys + tl.load(tail_keys + row) * UNIT, heads * HEAD_STEP + slot * TOKEN_STEP
    _store(at, target, tl.load(source + dims, mask=valid, other=0.0), valid, D, FORM)
    if ROPE > 0:
        rotary = tl.load(source + D + tl.arange(0, ROPE)[None, :], mask=valid, other=0.0)
        _store(at + D, target, rotary, valid, ROPE, FORM)
    if not LATENT:
        at, target = values + tl.load(tail_values + row) * UNIT, heads * VALUE_HEAD_STEP + slot * VALUE_STEP
        _store(at, target, tl.load(v + which * D + dims, mask=valid, other=0.0), valid, D, FORM)
    if not COUNTED:
        tl.debug_barrier()  # every thread has read the count
        tl.store(tokens + row, slot + 1)


@triton.jit
def balance(
    first,  # [rows, FIRST], contiguous
    first_lse,  # [rows]
    second,  # [rows, SECOND], contiguous
    second_lse,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
):
    """Scale the attention of each row over two contexts by the weight of its context. Grid: rows."""
    row = tl.program_id(0).to(tl.int64)
    one, other = tl.load(first_lse + row), tl.load(second_lse + row)
    top = tl.maximum(one, other)
    one, other = tl.exp2(one - top), tl.exp2(other - top)
    total = one + other
    _scale(first + row * FIRST, one / total, FIRST)
    _scale(second + row * SECOND, other / total, SECOND)


@triton.jit
def _scale(at, factor, SIZE: tl.constexpr):
    """Multiply SIZE numbers; if the factor is 0, they may be unwritten memory before."""
    places = at + tl.arange(0, SIZE)
    numbers = tl.load(places).to(tl.float32)
    tl.store(places, tl.where(factor == 0.0, 0.0, numbers * factor).to(at.dtype.element_ty))
