// The measured runs of families.jsonl beside what the replay says about the same job.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace shardfit::memory {

// Bytes above parameters, buffers and inputs. `kept`: between a block's first moment and the next block's, block by block.
struct BlockBytes {
  std::vector<std::int64_t> kept;
  std::int64_t forward_peak = 0, loss_peak = 0, backward_peak = 0;
};

struct FamilyRow {
  std::string family, variant, transformers;
  std::int64_t parameters = 0;
  BlockBytes measured;
};

std::vector<FamilyRow> family_rows(const std::string& file);
// The product's name of the family that the row's configuration belongs to.
std::string family_of(const FamilyRow& row, const std::string& configs);
// Throws what the product throws for a job it refuses.
BlockBytes predicted(const FamilyRow& row, const std::string& configs);

}  // namespace shardfit::memory
