// Peaks of single operators (ops.csv, from Liger-Kernel's benchmarks) against what the tape says is kept. Those benchmarks run backward
// with retain_graph=True, so what is kept and what backward makes add up; the slope over tokens leaves weights and workspaces aside.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "regions/base/files.hpp"
#include "selector/hardware/device.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/memory/op_rules.hpp"
#include "selector/model/builder.hpp"

namespace shardfit::memory {
namespace {

const std::string kFolder = std::string(SHARDFIT_SOURCE_DIR) + "/tests/truth";
constexpr std::int64_t kHidden = 4096, kWide = 11008;   // of the benchmark

// Bytes a token between T = 4096 and 8192 at batch 4, A100.
double measured_slope(const std::string& provider) {
  std::map<int, double> peak;
  std::istringstream text(read_file(kFolder + "/ops.csv"));
  for (std::string line; std::getline(text, line);) {
    const std::string head = "swiglu," + provider + ",full,T,";
    if (line.rfind(head, 0) != 0 || line.find("A100") == std::string::npos) continue;
    const auto end = line.rfind(",MB"), begin = line.rfind(',', end - 1);
    peak[std::stoi(line.substr(head.size()))] = std::stod(line.substr(begin + 1, end - begin - 1));
  }
  return (peak.at(8192) - peak.at(4096)) * 1048576.0 / (4 * 4096);
}

// Kept by the MLP between forward and backward, a token, without its input.
double kept_by_mlp(bool fused) {
  const nlohmann::json kernels = fused ? nlohmann::json::array({"swiglu"}) : nlohmann::json::array();
  const auto job = job::parse_job({{"model", "configs/meta-llama__Llama-2-7b-hf.json"}, {"method", "full"}, {"sequence_length", 1024}, {"precision", "bf16"}, {"fused_kernels", kernels},
                                   {"framework", {{"name", "ddp"}, {"trainer", "transformers"}}}},
                                  kFolder);
  const auto plan = job::parse_plan({{"gpu", "a100_sxm_80gb"}, {"gpus_per_node", 1}});
  const auto model = model::load_model(job.model_path());
  const Setup setup = make_setup({job, plan, model, hardware::find_device("a100_sxm_80gb", "")});
  model::Builder b("LlamaMLP", "mlp", kHidden, model::Space::kTokens);
  const auto gate = b.linear("gate_proj", b.input(), kWide), up = b.linear("up_proj", b.input(), kWide);
  const model::Block block = b.finish(b.linear("down_proj", b.gated_activation("act_fn", gate, up, model::Activation::kSilu), kHidden));
  constexpr std::int64_t kTokens = 1024;
  const Tape tape = block_tape(setup, block, unit_sizes(setup, block), {.tokens = kTokens, .encoder_tokens = 0, .sequences = 1, .sequence = kTokens});
  return static_cast<double>(tape.saved_bytes()) / kTokens;
}

TEST(Operators, SwiGluAsHuggingFaceWritesIt) {
  // input, output and their gradients; gradients of the product and of both its factors
  const double predicted = kept_by_mlp(false) + 4 * kHidden * 2 + 3 * kWide * 2;
  EXPECT_NEAR(predicted / measured_slope("huggingface"), 1, 0.001);
}

TEST(Operators, SwiGluInOneKernel) {
  // the kernel writes the gradients of gate and up over them
  const double predicted = kept_by_mlp(true) + 4 * kHidden * 2 + 1 * kWide * 2;
  EXPECT_NEAR(predicted / measured_slope("liger"), 1, 0.03);
}

}  // namespace
}  // namespace shardfit::memory
