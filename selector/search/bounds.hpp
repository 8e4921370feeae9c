// A lower bound of the memory a plan needs, computed in nanoseconds: plans it rules out are never replayed.
#pragma once

namespace shardfit::job {
struct Job;
struct Plan;
}  // namespace shardfit::job
namespace shardfit::model {
struct Model;
}

namespace shardfit::search {

// What is the same for all plans of a job.
struct Sizes {
  double parameters = 0, block_parameters = 0;  // all; of the largest block
  double hidden = 0, blocks = 0, sequence = 0;
  double weight_bytes = 0,
         state_bytes = 0;       // a parameter's own bytes; of its master and optimizer states; least values
  double activation_bytes = 2;  // an element of the stream between blocks
  bool all_trainable = false;
};
Sizes sizes_of(const job::Job& job, const model::Model& model);

// Bytes on one GPU: this rank's parameters and states and the streams saved between blocks; gradients, gathered blocks,
// logits, workspaces and the allocator's slack are left out, so the true need is larger.
double memory_floor(const Sizes& sizes, const job::Plan& plan);

}  // namespace shardfit::search
