// Real model files, jobs and plans, spoilt in every way that comes to mind. What must come out: one Error with a message, or an
// estimate whose numbers are numbers. Nothing else: no other exception, no crash, no hang (a watchdog ends the program).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <sys/time.h>
#include <unistd.h>

#include "cases.hpp"
#include "mutate.hpp"
#include "pricing/offers.hpp"
#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "selector/hardware/device.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/memory/advice.hpp"
#include "selector/memory/memory.hpp"
#include "selector/model/model.hpp"
#include "selector/time/time.hpp"

namespace shardfit::fuzz {
namespace {

using nlohmann::json;

const std::string kTruth = std::string(SHARDFIT_SOURCE_DIR) + "/tests/truth/";
constexpr unsigned kWatchdogSeconds = 120;  // of one case's CPU time; the slowest real ones take milliseconds

std::size_t cases(std::size_t in_ci) {
  const char* stated = std::getenv("SHARDFIT_FUZZ_CASES");
  return stated ? std::strtoull(stated, nullptr, 10) : in_ci;
}

// SHARDFIT_FUZZ_SEED shifts every case: runs of a different seed share none.
std::uint64_t seed() {
  const char* stated = std::getenv("SHARDFIT_FUZZ_SEED");
  return stated ? std::strtoull(stated, nullptr, 10) * 1000000000ULL : 0;
}

const std::vector<std::string>& config_texts() {
  static const std::vector<std::string> texts = [] {
    std::vector<std::string> paths, out;
    for (const char* folder : {"configs", "models"})
      for (const auto& entry : std::filesystem::directory_iterator(kTruth + folder))
        if (entry.path().extension() == ".json") paths.push_back(entry.path().string());
    std::sort(paths.begin(), paths.end());
    for (const auto& path : paths) out.push_back(read_file(path));
    return out;
  }();
  return texts;
}

void expect_bytes(std::int64_t bytes, const char* what) {
  EXPECT_GE(bytes, 0) << what;
  EXPECT_LT(bytes, std::numeric_limits<std::int64_t>::max() / 2) << what;
}

// Ends the program when that much CPU time passes; a loaded machine does not count. 0 = no more.
void watch(unsigned seconds) {
  const itimerval timer{.it_interval = {}, .it_value = {.tv_sec = seconds, .tv_usec = 0}};
  setitimer(ITIMER_PROF, &timer, nullptr);
}

// Runs `body`, which may only return or throw Error with a message of one line.
template <class F>
bool answered(F&& body) {
  watch(kWatchdogSeconds);
  bool done = false;
  try {
    body();
    done = true;
  } catch (const Error& e) {
    EXPECT_FALSE(e.message.empty());
    EXPECT_FALSE(e.code.empty());
    EXPECT_EQ(std::string_view(e.what()).find('\n'), std::string_view::npos);
  } catch (const std::exception& e) {
    ADD_FAILURE() << "not an Error: " << e.what();
  }
  watch(0);
  return done;
}

void estimate(const job::Job& job, const job::Plan& plan, const model::Model& model) {
  const hardware::Device& device = hardware::find_device(plan.gpu, "/plan/gpu");
  const memory::Result r = memory::estimate_memory({job, plan, model, device});
  const MemoryEstimate& m = r.memory;
  expect_bytes(m.allocated_peak, "allocated_peak");
  expect_bytes(m.reserved_peak, "reserved_peak");
  expect_bytes(m.device_peak, "device_peak");
  expect_bytes(m.allocated_peak_high, "allocated_peak_high");
  expect_bytes(m.device_peak_high, "device_peak_high");
  expect_bytes(m.host, "host");
  expect_bytes(m.host_pinned, "host_pinned");
  expect_bytes(m.nvme, "nvme");
  EXPECT_GE(m.allocated_peak_high, m.allocated_peak);
  std::int64_t sum = 0;
  for (const auto& term : m.terms) {
    EXPECT_GE(term.bytes, 0) << term.name;
    sum += term.bytes;
  }
  EXPECT_EQ(sum, m.device_peak) << "terms";
  EXPECT_TRUE(r.fits == "yes" || r.fits == "no" || r.fits == "unsure") << r.fits;
  expect_bytes(r.parameters_total, "parameters");
  EXPECT_LE(r.parameters_trainable, r.parameters_total + (std::int64_t{1} << 50));
  const auto time = timing::estimate_time({.job = job, .plan = plan, .model = model, .device = device}).time;
  EXPECT_FALSE(std::isnan(time.step));
  EXPECT_GE(time.step, 0);
  EXPECT_LE(time.step_low, time.step_high);
}

TEST(EstimateFuzz, SpoiltModelFiles) {
  std::size_t built = 0;
  const std::size_t n = cases(3000);
  for (std::size_t i = 0; i < n; ++i) {
    Random r(seed() + 1000000 + i);
    std::string text = config_texts()[r.below(config_texts().size())];
    if (r.chance(20)) {
      mutate(text, r);
    } else if (json config = json::parse(text, nullptr, false); !config.is_discarded()) {
      mutate(config, r);
      text = config.dump();
    }
    const std::string as = r.chance(10) ? model::known_families()[r.below(model::known_families().size())] : "";
    SCOPED_TRACE("case " + std::to_string(i));
    built += answered([&] {
      const model::Model m = model::parse_model(text, "config.json", as);
      EXPECT_GT(m.parameters(), 0);
      EXPECT_LE(m.parameters(), std::int64_t{1} << 52);
      EXPECT_GT(m.block_count(), 0);
    });
    if (testing::Test::HasFailure()) {
      std::fprintf(stderr, "case %zu, --as \"%s\":\n%s\n", i, as.c_str(), text.substr(0, 4000).c_str());
      return;
    }
  }
  EXPECT_GT(built, n / 20) << "hardly any case is a model: the fuzzer tests nothing";
}

// What longer runs found, kept.
TEST(EstimateFuzz, FoundBefore) {
  for (const char* config : {
           R"({"model_type":"t5","d_model":768,"d_kv":64,"d_ff":3072,"num_layers":12,"num_heads":12,"vocab_size":29096,"feed_forward_proj":"gelu","is_gated_act":true})",
       })
    EXPECT_TRUE(answered([&] { EXPECT_GT(model::parse_model(config, "config.json").parameters(), 0); })) << config;
  // a pipeline that holds a million micro batches
  const auto m = model::parse_model(read_file(kTruth + "configs/openai-community__gpt2.json"), "config.json");
  const auto job = job::parse_job({{"model", "config.json"}, {"method", "full"}, {"sequence_length", 8}, {"precision", "bf16-mixed"}, {"framework", {{"name", "megatron"}}}}, "/tmp", "/job");
  const auto plan = job::parse_plan({{"gpu", "h100_sxm_80gb"}, {"gpus_per_node", 2}, {"gradient_accumulation", 1 << 20}, {"pipeline_parallel", {{"degree", 2}, {"schedule", "gpipe"}}}}, "/plan");
  EXPECT_TRUE(answered([&] { estimate(job, plan, m); }));
}

// The whole road of one case: model, job, plan, estimate.
void run_case(std::size_t i, std::uint64_t base, bool spoil_model, bool spoil_settings, std::size_t& estimated, std::map<std::string, int>& codes) {
  Random r(seed() + base + i);
  json config = json::parse(config_texts()[r.below(config_texts().size())], nullptr, false), job_json = job_of(r), plan_json = plan_of(r);
  if (config.is_discarded()) return;
  if (spoil_model) mutate(config, r, 2);
  if (spoil_settings && r.chance(70)) mutate(job_json, r, 2);
  if (spoil_settings && r.chance(70)) mutate(plan_json, r, 2);
  SCOPED_TRACE("case " + std::to_string(i));
  std::string stage = "start";
  estimated += answered([&] {
    try {
      const auto m = model::parse_model(config.dump(), "config.json");
      const auto job = job::parse_job(job_json, "/tmp", "/job");
      const auto plan = job::parse_plan(plan_json, "/plan");
      job::require_estimable(job, "/job");
      job::check_plan_against_job(job, plan);
      estimate(job, plan, m);
    } catch (const Error& e) {
      ++codes[e.code];
      throw;
    }
  });
  if (testing::Test::HasFailure()) std::fprintf(stderr, "case %zu\nconfig %s\njob %s\nplan %s\n", i, config.dump().substr(0, 3000).c_str(), job_json.dump().c_str(), plan_json.dump().c_str());
}

TEST(EstimateFuzz, RealModelsUnderManySettings) {
  std::size_t estimated = 0;
  std::map<std::string, int> codes;
  const std::size_t n = cases(2000);
  for (std::size_t i = 0; i < n && !testing::Test::HasFailure(); ++i) run_case(i, 2000000, false, false, estimated, codes);
  EXPECT_GT(estimated, n / 3);
  for (const auto& [code, count] : codes) RecordProperty(code, count);
}

TEST(EstimateFuzz, SpoiltJobsAndPlans) {
  std::size_t estimated = 0;
  std::map<std::string, int> codes;
  const std::size_t n = cases(3000);
  for (std::size_t i = 0; i < n && !testing::Test::HasFailure(); ++i) run_case(i, 3000000, i % 3 == 0, true, estimated, codes);
  EXPECT_GT(estimated, n / 20);
}

TEST(EstimateFuzz, AdviceForWhatDoesNotFit) {
  const std::size_t n = cases(40);
  std::size_t advised = 0;
  for (std::size_t i = 0; i < std::min<std::size_t>(n, 400) && !testing::Test::HasFailure(); ++i) {
    Random r(seed() + 4000000 + i);
    const std::string& text = config_texts()[r.below(config_texts().size())];
    const json job_json = job_of(r), plan_json = plan_of(r);
    SCOPED_TRACE("case " + std::to_string(i) + " " + job_json.dump() + " " + plan_json.dump());
    answered([&] {
      const auto m = model::parse_model(text, "config.json");
      const auto job = job::parse_job(job_json, "/tmp", "/job");
      const auto plan = job::parse_plan(plan_json, "/plan");
      for (const auto& a : memory::advise({job, plan, m, hardware::find_device(plan.gpu, "/plan/gpu")})) {
        ++advised;
        EXPECT_TRUE(a.frees > 0 || a.frees_host > 0);
        EXPECT_FALSE(to_words(a).empty());
      }
    });
  }
  EXPECT_GT(advised, 0u);
}

}  // namespace
}  // namespace shardfit::fuzz
