// From a block of the model to its tape: what PyTorch allocates, keeps and frees for each operator, in the dialect of the trainer's
// code. One rule a kind of operator.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "selector/memory/setup.hpp"
#include "selector/memory/tape.hpp"
#include "selector/memory/unit_sizes.hpp"

namespace shardfit::memory {

struct BlockShape {
  std::int64_t tokens = 0;          // positions of the block's own stream
  std::int64_t encoder_tokens = 0;  // positions of the encoder's output, in a decoder block
  std::int64_t sequences = 1;
  std::int64_t sequence = 0;        // positions of one sequence
  bool frozen_input = false;        // nothing before the block is trained, so what comes in has no gradient
};

Tape block_tape(const Setup& setup, const model::Block& block, const UnitSizes& unit, const BlockShape& shape);

// Final norm, output projection and loss.
Tape head_tape(const Setup& setup, const UnitSizes& unit, const BlockShape& shape);

// The state shared by the rules while one block is written down; used by the *_rules.cpp files only.
class TapeWriter {
 public:
  TapeWriter(const Setup& setup, const model::Block& block, const UnitSizes& unit, const BlockShape& shape);
  Tape write();

  // Per tensor of the tape: what the rules need to know beside its bytes.
  struct Meta {
    std::int64_t positions = 0, width = 0;  // on this rank
    int bytes = 2;                          // an element
    bool split = false;                     // over tensor parallel ranks
    bool sharded = false;                   // over sequence parallel ranks
    bool heads_first = false;               // lies in [heads, positions], not in [positions, heads]
    int gathered = -1;                      // the same, gathered over the sequence
    std::int64_t elements() const { return positions * width; }
    std::int64_t size() const { return elements() * bytes; }
  };

  int emit(TapeOp op, const Meta& meta);    // result with that meta
  int norm(const model::Op& op, int x);
  int linear(std::size_t op_index, int x);
  bool is_last_linear(std::size_t op_index) const;
  int row_parallel_end(int y, bool last = false);
  int gather_sequence(int x);
  void keep_input(TapeOp& product, int x);
  void attention(const model::Op& op);
  void contiguous_for_megatron(const model::AttentionShape& shape, int& q, int& k, int& v);
  int attention_core(const model::AttentionShape& shape, int q, int k, int v);
  int experts(const model::Op& op, int x, int weights);
  int experts_grouped(const model::Op& op, int x, int weights);
  int experts_loop(const model::Op& op, int x, int weights);
  int experts_megatron(const model::Op& op, int x);
  bool recomputes_layer(const char* name) const;   // Megatron's --recompute-modules holds it
  bool packed_projection(std::size_t first, std::size_t& next);
  int cast(int x, const Meta& to, const char* name);
  // lora_rules.cpp
  bool scales_input(const model::Op& op) const;
  int scaled_input(const model::Op& op, int x);
  int scaled_output(const model::Op& op, int y);
  int lora_dropout(int x, const Meta& m);
  int lora(std::size_t index, int x, int y, std::int64_t in_features);
  int dora(const model::Op& op, int x, int y, int v, std::int64_t weight);
  int packed_lora(std::size_t first, int x, int y);
  std::int64_t weight_gradient(std::int64_t elements) const;
  bool trains(int parameter) const { return parameter >= 0 && unit.roles[static_cast<std::size_t>(parameter)].trainable; }

  const Setup& s;
  const model::Block& block;
  const UnitSizes& unit;
  BlockShape shape;
  Tape tape;
  std::vector<Meta> meta;                   // by tape tensor
  std::vector<int> of;                      // model tensor -> tape tensor
  int A, R;                                 // bytes of an activation and of the residual stream
  bool recomputed(const model::Op& op) const;  // by selective checkpointing of modules
  bool recomputing_ = false;                // of the operator that is being written
  void add_module(std::size_t first, std::size_t last, int first_op);
  std::string container_;                   // of the module written last
  int matmuls = 0;                          // for the selective policy
  std::vector<int> kept_in_fp8;             // tensors of which an FP8 copy is kept already
};

}  // namespace shardfit::memory
