// metrics.jsonl: one line a step and one an event, in the order they happened. Numbers read back equal the run's own;
// NaN and infinity are null.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>

namespace shardfit::train {

class Metrics {
 public:
  Metrics() = default;                                  // writes nowhere
  explicit Metrics(const std::filesystem::path& file);  // continues the file; throws Error{storage_failed, exit 13}
  Metrics(Metrics&& other) noexcept;
  Metrics& operator=(Metrics&& other) noexcept;
  ~Metrics();
  int descriptor() const { return descriptor_; }
  void line(const nlohmann::ordered_json& object);  // written at once, one system call a line

 private:
  int descriptor_ = -1;
  std::string path_;
};

nlohmann::ordered_json number_or_null(double value);

}  // namespace shardfit::train
