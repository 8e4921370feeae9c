// The tensors that a block of our runtime keeps and uses, in bytes: runtime/models lays its buffers out by these
// functions, so that prediction and execution cannot differ.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "selector/schedule/precision.hpp"

namespace shardfit::job {
struct Job;
struct Plan;
}  // namespace shardfit::job
namespace shardfit::model {
struct Model;
}

namespace shardfit::schedule {

enum class Architecture { kLlama, kGpt2 };

// What the kernels need to know of a model, whatever family it is of.
struct Geometry {
  Architecture architecture = Architecture::kLlama;
  std::int64_t hidden = 0, layers = 0, vocabulary = 0, intermediate = 0, max_positions = 0;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  bool head_norms = false;  // Qwen3: an RMSNorm over each head of q and k, before RoPE
  bool tied = false;        // output projection = embedding table
  std::int64_t query_width() const { return heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
};
Geometry geometry_of(const model::Model& model);

// A row of equal items inside one buffer; offsets in bytes, each a multiple of 64.
struct Field {
  std::string name;
  std::int64_t offset = 0, bytes = 0;
};
struct Layout {
  std::vector<Field> fields;
  std::int64_t bytes = 0;
  void add(const std::string& name, std::int64_t bytes);
  std::int64_t at(const std::string& name) const;  // offset; throws std::logic_error for an unknown name
};

inline constexpr std::int64_t kAttentionQueryTile = 64;  // rows of a tile of scores
inline constexpr std::int64_t kAttentionKeyTile = 512;   // columns of a tile of scores
inline constexpr std::int64_t kLossTileElements = std::int64_t{1}
                                                  << 23;  // logits alive at once, where the job states no chunk

inline constexpr std::int64_t kWeightTileRows =
    4096;  // rows of the output projection's gradient that are made narrow before they are added

struct Sizes {
  Geometry geometry;
  RunPrecision precision;
  std::int64_t micro_batch = 1, sequence = 0;
  std::int64_t attention_workers = 8;  // threads that work on attention at once, each with its own tiles
  std::int64_t loss_rows = 0;          // rows of logits alive at once
  std::int64_t tokens() const { return micro_batch * sequence; }
};
Sizes sizes_of(const model::Model& model, const job::Job& job, const job::Plan& plan);

Layout saved_layout(const Sizes& sizes);     // what a block keeps from forward to backward, its input apart
Layout forward_layout(const Sizes& sizes);   // scratch of a block's forward
Layout backward_layout(const Sizes& sizes);  // scratch of a block's backward
Layout loss_layout(
    const Sizes& sizes);  // scratch of final norm, output projection and cross-entropy, forward and backward
std::int64_t attention_tile_bytes(const Sizes& sizes);  // of one attention worker

}  // namespace shardfit::schedule
