// Products of many rows with Intel's matrix unit (AMX), for pairs of bfloat16 numbers. A part of loops.cpp,
// which says how it is compiled.
//
// A tile register holds 16 rows of 64 bytes. One instruction multiplies 16 rows of 16 pairs with 16 pairs of 16 numbers
// and adds the result to 16 x 16 floats. The packed layout fits this instruction: a block of K holds pairs of
// dimensions, one after the other, for sixteen tokens; a band of V holds pairs of tokens for its dimensions.
#pragma once

#include <cstdint>

#include "products.h"

namespace chunkbench {
namespace CHUNKBENCH_NAMESPACE {
namespace {

#ifdef CHUNKBENCH_TILE_PRODUCTS
constexpr int kTileRows = 16;
constexpr int kTileSteps = 16;  // pairs of the summed index that one instruction takes

// The tiles of an item: 0 and 1 the sums of sixteen rows, 2 and 3 those of the last, maybe fewer, rows; 4 and 5 the
// left sides of these rows; 6 and 7 two blocks of the right side. Frees the matrix unit at its end: a thread that holds
// tiles costs the system more.
class Tiles {
  public:
    // Sets up the tiles for items of `rows` rows; 0: without tiles.
    explicit Tiles(int rows) : used_(rows > 0) {
        if (!used_) return;
        const int last = (rows - 1) % kTileRows + 1;
        struct alignas(64) {
            std::uint8_t palette = 1, first_row = 0, reserved[14] = {};
            std::uint16_t bytes[16] = {};
            std::uint8_t rows[16] = {};
        } layout;
        for (int tile = 0; tile < 8; ++tile) {
            layout.bytes[tile] = kLine;
            layout.rows[tile] = tile == 2 || tile == 3 || tile == 5 ? static_cast<std::uint8_t>(last) : kTileRows;
        }
        _tile_loadconfig(&layout);
    }
    ~Tiles() {
        if (used_) _tile_release();
    }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;

  private:
    bool used_;
};

// Prefetches the data that is read next, some lines at a time, evenly over the work of a chunk. A thread waits for
// memory if it has few requests open, and of a burst of requests only the first lines help.
struct Spread {
    const char* at;
    const char* end;

    void fetch(int lines) {
        for (; lines > 0 && at < end; --lines, at += kLine) fetch_line<true>(at);
    }
};

// Sixteen rows (`First`), the last rows (`Second`) or both, times one or two blocks. Fetches `lines` lines of `ahead`
// for each step of the tiles.
template <bool First, bool Second, bool Two>
inline void multiply_tile(const Rows& rows, const std::uint16_t* right, std::int64_t block, std::int64_t step,
                          int steps, Spread& ahead, int lines) {
    const std::int64_t row = rows.row * 4, out_row = rows.out_row * 4;  // bytes
    const float* const second = First ? rows.left + kTileRows * rows.row : rows.left;
    float* const out2 = First ? rows.out + kTileRows * rows.out_row : rows.out;
    if (rows.add) {
        if constexpr (First) _tile_loadd(0, rows.out, out_row);
        if constexpr (First && Two) _tile_loadd(1, rows.out + 16, out_row);
        if constexpr (Second) _tile_loadd(2, out2, out_row);
        if constexpr (Second && Two) _tile_loadd(3, out2 + 16, out_row);
    } else {
        if constexpr (First) _tile_zero(0);
        if constexpr (First && Two) _tile_zero(1);
        if constexpr (Second) _tile_zero(2);
        if constexpr (Second && Two) _tile_zero(3);
    }
    for (int i = 0; i < steps; i += kTileSteps, right += kTileSteps * step) {
        ahead.fetch(lines);
        if constexpr (First) _tile_loadd(4, rows.left + i, row);
        _tile_loadd(6, right, 2 * step);
        if constexpr (Second) _tile_loadd(5, second + i, row);
        if constexpr (First) _tile_dpbf16ps(0, 4, 6);
        if constexpr (Two) _tile_loadd(7, right + block, 2 * step);
        if constexpr (Second) _tile_dpbf16ps(2, 5, 6);
        if constexpr (First && Two) _tile_dpbf16ps(1, 4, 7);
        if constexpr (Second && Two) _tile_dpbf16ps(3, 5, 7);
    }
    if constexpr (First) _tile_stored(0, rows.out, out_row);
    if constexpr (First && Two) _tile_stored(1, rows.out + 16, out_row);
    if constexpr (Second) _tile_stored(2, out2, out_row);
    if constexpr (Second && Two) _tile_stored(3, out2 + 16, out_row);
}

// All rows times one or two blocks: two tiles of rows together as long as the layout of the tiles allows it.
template <bool Two>
inline void multiply_rows(Rows rows, const std::uint16_t* right, std::int64_t block, std::int64_t step, int steps,
                          Spread& ahead, int lines) {
    const bool even = rows.count % kTileRows == 0;  // the last rows are sixteen, too
    while (rows.count > 0) {
        int count;
        if (even ? rows.count >= 2 * kTileRows : rows.count > kTileRows && rows.count < 2 * kTileRows) {
            multiply_tile<true, true, Two>(rows, right, block, step, steps, ahead, lines);
            count = rows.count < 2 * kTileRows ? rows.count : 2 * kTileRows;
        } else if (rows.count >= kTileRows) {
            multiply_tile<true, false, Two>(rows, right, block, step, steps, ahead, lines);
            count = kTileRows;
        } else {
            multiply_tile<false, true, Two>(rows, right, block, step, steps, ahead, lines);
            count = rows.count;
        }
        rows.count -= count;
        rows.left += count * rows.row;
        rows.out += count * rows.out_row;
    }
}

// `multiply` of products.h for many rows. `rows.count` is the number for which the tiles were laid out.
template <Side Of>
inline void multiply_tiles(Rows rows, const Right<Bfloat16, Of>& right, int blocks, Spread& ahead, int lines) {
    const std::uint16_t* at = right.at;
    for (; blocks > 0; blocks -= 2, at += 2 * right.block(), rows.out += 32) {
        if (blocks >= 2) {
            multiply_rows<true>(rows, at, right.block(), right.step(), right.steps, ahead, lines);
        } else {
            multiply_rows<false>(rows, at, right.block(), right.step(), right.steps, ahead, lines);
        }
    }
}
#endif

}  // namespace
}  // namespace CHUNKBENCH_NAMESPACE
}  // namespace chunkbench
