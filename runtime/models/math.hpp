// What a model's config says about its mathematics, as the kernels need it. Read from the same model::Model that is
// priced.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "selector/schedule/activations.hpp"

namespace shardfit::model {
struct Model;
}

namespace shardfit::models {

struct Math {
  schedule::Geometry geometry;
  double norm_epsilon = 1e-5;
  std::vector<float> inverse_frequencies;            // RoPE: radians a position, head_dim / 2 of them; empty for GPT-2
  std::vector<std::optional<std::int64_t>> windows;  // by block: sliding window
  double embedding_dropout = 0, attention_dropout = 0, residual_dropout = 0;
};

// `dropout`: train.dropout, which overrides every dropout of the config. Throws Error{not_supported} for a kind of
// RoPE, activation or bias that the runtime does not know.
Math math_of(const model::Model& model, std::optional<double> dropout);

// fp32 [positions][head_dim]: cosines, then sines.
void fill_rope_table(const Math& math, std::int64_t positions, float* table);

}  // namespace shardfit::models
