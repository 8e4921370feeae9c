// What may differ between the job that saved a checkpoint and the job that resumes from it.
#include <algorithm>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "runtime/checkpoint/checkpoint.hpp"

namespace shardfit::checkpoint {
namespace {

// clang-format off
// Where and how long it runs and what it writes on the way; nothing that changes a step's arithmetic but the learning rate.
constexpr const char* kMayDiffer[] = {"/output",          "/duration",       "/train/save_steps",      "/train/save_at",       "/train/save_total_limit",
                                      "/train/eval_steps", "/train/logging_steps", "/train/log_sample_ids", "/train/learning_rate", "/deadline",
                                      "/max_cost",        "/pins",           "/locations",             "/storage_gb",          "/egress_gb"};
// clang-format on

bool may_differ(const std::string& pointer) {
  return std::any_of(std::begin(kMayDiffer), std::end(kMayDiffer), [&](const char* key) { return pointer == key; });
}

// Parameters may become trainable or frozen; the kinds that add parameters may not come or go.
bool same_kind_of_parameters(const Json& method) {
  const std::string kind = method.is_string() ? method.get<std::string>() : method.value("kind", "");
  return kind == "full" || kind == "partial";
}

void compare(const Json& saved, const Json& now, const std::string& pointer) {
  if (saved == now || may_differ(pointer)) return;
  if (pointer == "/method" && same_kind_of_parameters(saved) && same_kind_of_parameters(now)) return;
  if (saved.is_object() && now.is_object()) {
    static const Json absent;
    for (const auto& [key, value] : saved.items())
      compare(value, now.contains(key) ? now.at(key) : absent, pointer + "/" + key);
    for (const auto& [key, value] : now.items())
      if (!saved.contains(key)) compare(absent, value, pointer + "/" + key);
    return;
  }
  throw Error("resume_mismatch", pointer,
              "was " + brief(saved) + " when the checkpoint was saved and is " + brief(now) + " now",
              "set it back, or start anew with --resume never or another output folder");
}

}  // namespace

void check_resumable(const std::string& saved_job_json, const std::string& job_json) {
  compare(Json::parse(saved_job_json), Json::parse(job_json), "");
}

}  // namespace shardfit::checkpoint
