// Random initial weights that do not depend on the number of ranks: every element is a function of seed, parameter name
// and place.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace shardfit::schedule {
struct Slice;
}

namespace shardfit::engine {

// Elements [first, first + out.size()) of a parameter. `layers` for GPT-2's residual projections.
void draw_parameter(std::uint64_t seed, const schedule::Slice& slice, double range, std::int64_t layers,
                    std::int64_t first, std::span<float> out);

}  // namespace shardfit::engine
