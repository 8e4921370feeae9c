// Which complete checkpoints an output folder holds.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace shardfit::checkpoint {

struct CompleteOnes {
  struct One {
    std::filesystem::path path;
    std::int64_t step = 0, sequence = 0;
  };
  std::vector<One> complete;        // newest first
  std::vector<std::string> broken;  // "step-00000020: WHY", highest step first
};
CompleteOnes list_complete(const std::filesystem::path& output);

}  // namespace shardfit::checkpoint
