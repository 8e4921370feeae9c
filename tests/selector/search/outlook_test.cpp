// What the search knows before it replays: never more than the replay finds, and the same verdict at a host.
#include "selector/memory/outlook.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "pricing/offers.hpp"
#include "regions/base/error.hpp"
#include "selector/hardware/device.hpp"
#include "selector/model/model.hpp"
#include "selector/search/candidates.hpp"

namespace shardfit::search {
namespace {

using Json = nlohmann::json;

job::Job job_of(const char* framework, const char* model, const char* method = "full") {
  return job::parse_job(Json{{"model", std::string("configs/") + model + ".json"},
                             {"sequence_length", 2048},
                             {"method", method == std::string("full")
                                            ? Json(method)
                                            : Json{{"kind", method}, {"rank", 16}, {"targets", {"q_proj", "v_proj"}}}},
                             {"global_batch_sequences", 32},
                             {"duration", {{"steps", 10}}},
                             {"framework", {{"name", framework}}}},
                        SHARDFIT_SOURCE_DIR "/tests/truth");
}

std::vector<job::Plan> some_plans(const job::Job& job, const model::Model& model, const char* gpu) {
  auto plans = plans_for(job, model, {gpu, 1, 8});
  for (const auto& shape : {Shape{gpu, 1, 1}, Shape{gpu, 2, 8}})
    for (auto& plan : plans_for(job, model, shape)) plans.push_back(std::move(plan));
  return plans;
}

TEST(Outlook, IsALowerBoundOfTheReplay) {
  struct Case {
    const char *framework, *model, *method, *gpu;
  };
  // clang-format off
  for (const auto& c : {Case{"shardfit", "meta-llama__Llama-3.2-1B", "full", "h100_sxm_80gb"}, Case{"fsdp2", "meta-llama__Meta-Llama-3-8B", "full", "h100_sxm_80gb"},
                        Case{"fsdp2", "meta-llama__Llama-3.2-1B", "lora", "rtx_4090_24gb"}, Case{"fsdp1", "meta-llama__Llama-3.2-1B", "full", "v100_sxm_32gb"},
                        Case{"fsdp1", "meta-llama__Llama-3.2-1B", "qlora", "rtx_4090_24gb"}, Case{"deepspeed", "meta-llama__Meta-Llama-3-8B", "full", "a100_sxm_80gb"},
                        Case{"deepspeed", "mistralai__Mixtral-8x7B-v0.1", "full", "h100_sxm_80gb"}, Case{"megatron", "meta-llama__Meta-Llama-3-8B", "full", "h100_sxm_80gb"},
                        Case{"megatron", "mistralai__Mixtral-8x7B-v0.1", "full", "h100_sxm_80gb"}, Case{"ddp", "meta-llama__Llama-3.2-1B", "full", "a100_sxm_40gb"},
                        Case{"other", "meta-llama__Llama-3.2-1B", "full", "a100_sxm_40gb"}}) {
    // clang-format on
    const auto job = job_of(c.framework, c.model, c.method);
    const auto model = model::load_model(job.model_path());
    const auto& device = hardware::find_device(c.gpu, "");
    double closest = 0;
    int compared = 0;
    const auto plans = some_plans(job, model, c.gpu);
    for (size_t i = 0; i < plans.size(); i += plans.size() / 120 + 1) {
      const auto& plan = plans[i];
      const memory::Request request{.job = job, .plan = plan, .model = model, .device = device};
      std::optional<memory::Result> replayed;
      try {
        replayed = memory::estimate_memory(request);
      } catch (const Error&) {  // a combination that the framework refuses
        continue;
      }
      const auto outlook = memory::outlook(request);
      EXPECT_DOUBLE_EQ(outlook.capacity, replayed->capacity_bytes);
      EXPECT_LE(outlook.least, replayed->needed_low) << c.framework << " " << c.model << " " << to_json(plan).dump();
      EXPECT_LE(outlook.likely, replayed->needed_high) << c.framework << " " << c.model << " " << to_json(plan).dump();
      if (outlook.fits_never()) {
        EXPECT_EQ(replayed->fits, "no") << to_json(plan).dump();
      }
      if (outlook.fits_hardly()) {
        EXPECT_NE(replayed->fits, "yes") << to_json(plan).dump();
      }
      closest = std::max(closest, outlook.least / replayed->needed_low);
      ++compared;
    }
    EXPECT_GT(compared, 5) << c.framework << " " << c.model;
    EXPECT_GT(closest, 0.6) << c.framework << " " << c.model;  // a bound that says nothing would pass the rest
  }
}

TEST(Outlook, TheVerdictAtAHostNeedsNoReplay) {
  const auto job = job_of("deepspeed", "meta-llama__Llama-3.2-1B");
  const auto model = model::load_model(job.model_path());
  int no = 0, unsure = 0, yes = 0;
  for (const char* gpu : {"h100_sxm_80gb", "v100_sxm_16gb"}) {
    const auto& device = hardware::find_device(gpu, "");
    const auto plans = some_plans(job, model, gpu);
    for (size_t i = 0; i < plans.size(); i += 7) {
      const auto bare = memory::estimate_memory({.job = job, .plan = plans[i], .model = model, .device = device});
      for (const double ram : {8.0, 48.0, 60.0, 96.0, 2000.0}) {
        pricing::Host host;
        host.ram_gib = ram;
        const memory::Request request{.job = job, .plan = plans[i], .model = model, .device = device, .host = &host};
        const auto replayed = memory::estimate_memory(request), judged = memory::at_host(request, bare);
        EXPECT_EQ(judged.fits, replayed.fits) << ram << " " << to_json(plans[i]).dump();
        EXPECT_EQ(judged.why, replayed.why);
        const auto back = memory::at_host({.job = job, .plan = plans[i], .model = model, .device = device}, judged);
        EXPECT_EQ(back.fits, bare.fits);
        EXPECT_EQ(back.why, bare.why);
        const auto verdict = memory::host_verdict(request);
        if (verdict == "no") {
          EXPECT_EQ(replayed.fits, "no");
        }
        if (verdict == "unsure") {
          EXPECT_NE(replayed.fits, "yes");
        }
        ++(replayed.fits == "no" ? no : replayed.fits == "unsure" ? unsure : yes);
      }
    }
  }
  EXPECT_GT(no, 0);
  EXPECT_GT(unsure, 0);
  EXPECT_GT(yes, 0);
}

}  // namespace
}  // namespace shardfit::search
