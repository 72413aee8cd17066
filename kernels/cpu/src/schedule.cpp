#include <algorithm>

#include "decode_plan.h"

namespace chunkbench {
namespace {

constexpr std::int64_t kUnitsPerThread = 64;

using Units = std::vector<Unit>;

// Units of items first .. end - 1 for some heads. Items that take one head at a time run head by head, `together` of
// them in one unit, so that chunks of one head that several rows read stay in the cache.
Units stage(const std::vector<Item>& items, std::int64_t first, std::int64_t end, Heads heads, std::int64_t together) {
    Units units;
    const int last = heads.first + heads.count;
    for (int head = heads.first; head < last; ++head) {
        bool joins = false;  // whether the next item can join the unit before it
        for (std::int64_t n = first; n < end; ++n) {
            const auto width = static_cast<int>(std::min<std::int64_t>(items[n].heads, last - head));
            if (items[n].heads == 1) {
                if (joins && units.back().items < together) {
                    ++units.back().items;
                } else {
                    units.push_back({n, 1, {head, 1}});
                    joins = true;
                }
                continue;
            }
            joins = false;
            if ((head - heads.first) % items[n].heads == 0) units.push_back({n, 1, {head, width}});
        }
    }
    return units;
}

// Both kinds spread evenly, `leaving` first, so that not all threads compute (or read) at the same time.
void mix(const Units& leaving, const Units& finishing, Units& to) {
    const std::size_t all = leaving.size() + finishing.size();
    std::size_t left = 0;
    for (std::size_t n = 0; n < all; ++n) {
        if (left * all <= n * leaving.size() && left < leaving.size()) {
            to.push_back(leaving[left++]);
        } else {
            to.push_back(finishing[n - left]);
        }
    }
}

}  // namespace

std::vector<Unit> schedule(const std::vector<Item>& items, std::int64_t partial_items, int kv_heads, int threads) {
    const auto count = static_cast<std::int64_t>(items.size());
    std::int64_t wide = 1, by_head = 0;  // heads of a stage; last items that take one head at a time
    for (std::int64_t n = 0; n < count; ++n) {
        wide = std::max(wide, items[n].heads);
        by_head += n >= partial_items && items[n].heads == 1;
    }
    const auto width = static_cast<int>(std::min<std::int64_t>(wide, kv_heads));
    const int stages = (kv_heads + width - 1) / width;
    const auto heads = [&](int n) { return Heads{n * width, std::min(width, kv_heads - n * width)}; };
    const std::int64_t together = std::max<std::int64_t>(1, by_head * kv_heads / (threads * kUnitsPerThread));
    const auto leaving = [&](int n) { return n < stages ? stage(items, 0, partial_items, heads(n), 1) : Units(); };
    // Items that write partial results run `lead` stages ahead of the items that fold them in. So a thread rarely
    // waits, and while one thread computes on shared chunks, another one reads private chunks.
    Units units = leaving(0);
    int lead = 1;
    for (; !units.empty() && lead < stages && static_cast<std::int64_t>(units.size()) <= threads; ++lead) {
        const Units more = leaving(lead);
        units.insert(units.end(), more.begin(), more.end());
    }
    for (int n = 0; n < stages; ++n) {
        mix(leaving(n + lead), stage(items, partial_items, count, heads(n), together), units);
    }
    return units;
}

}  // namespace chunkbench
