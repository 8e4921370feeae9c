// How long a decision takes: search_bench [REPEATS]
//
// 40 offers of 14 GPU types (20 hosts) for a Llama-3-8B job under fsdp2, every plan searched: cells a second, memory
// replays, and the CPU time of the one thread it runs on. Budget (docs/plan.md): 10,000 cells within 100 ms on one
// core.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "selector/decide/decide.hpp"
#include "selector/hardware/device.hpp"
#include "selector/model/model.hpp"
#include "selector/search/search.hpp"

namespace {

using namespace shardfit;
using Json = nlohmann::json;

double cpu_ms() { return 1000.0 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

std::vector<pricing::Offer> offers() {
  const char* gpus[] = {"h100_sxm_80gb",  "a100_sxm_80gb", "a100_sxm_40gb",  "h200_sxm_141gb", "b200_sxm_180gb",
                        "l40s_48gb",      "rtx_4090_24gb", "h100_pcie_80gb", "a100_pcie_80gb", "mi300x_192gb",
                        "rtx_a6000_48gb", "l4_24gb",       "v100_sxm_32gb",  "a10_24gb"};
  std::vector<pricing::Offer> out;
  for (int i = 0; i < 40; ++i)
    out.push_back(pricing::parse_offer(
        Json{{"id", "offer-" + std::to_string(i)},
             {"provider", "p"},
             {"region", "verda/FIN-02"},
             {"gpu", gpus[i % 14]},
             {"gpus_per_node", 8},
             {"max_nodes", 8},
             {"host", {{"vcpus", 128}, {"ram_gib", 512 + 64 * (i % 20)}, {"pcie_gbs", 25}}},
             {"interconnect", {{"node_gbs", 100}}},
             {"start_seconds", 300},
             {"price", {{"amount", 5 + 0.7 * i}, {"currency", "EUR"}, {"per", "node_hour"}, {"as_of", "2026-08-20"}}}},
        "/offer"));
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const int repeats = argc > 1 ? std::max(1, std::atoi(argv[1])) : 20;
  const auto job = job::parse_job(Json{{"model", "configs/meta-llama__Meta-Llama-3-8B.json"},
                                       {"sequence_length", 4096},
                                       {"global_batch_sequences", 512},
                                       {"duration", {{"tokens", 2e9}}},
                                       {"framework", {{"name", argc > 2 ? argv[2] : "fsdp2"}}}},
                                  SHARDFIT_SOURCE_DIR "/tests/truth");
  const auto model = model::load_model(job.model_path());
  const auto list = offers();
  const auto rates = pricing::Rates::shipped();
  std::vector<std::unique_ptr<pricing::Pricer>> pricers;
  std::vector<search::Choice> choices;
  for (size_t i = 0; i < list.size(); ++i) {
    pricers.push_back(std::make_unique<pricing::Pricer>(list[i], rates, "EUR", 1787356800));
    choices.push_back({.index = i,
                       .offer = &list[i],
                       .device = &hardware::find_device(list[i].gpu, ""),
                       .pricer = pricers.back().get()});
  }
  const auto duration = search::duration_of(job);
  std::vector<double> searched, decided;
  search::Outcome outcome;
  for (int i = 0; i < repeats; ++i) {
    double start = cpu_ms();
    outcome = search::search(job, model, duration, choices, {});
    searched.push_back(cpu_ms() - start);
    start = cpu_ms();
    const auto decision = decide::decide(job, list, {}, 1787356800);
    decided.push_back(cpu_ms() - start);
    if (!decision.chosen) return 1;
  }
  std::sort(searched.begin(), searched.end());
  std::sort(decided.begin(), decided.end());
  const double median = searched[searched.size() / 2];
  std::printf("%zu cells over %zu offers, %zu memory replays\n", outcome.cells, list.size(), outcome.replays);
  std::printf("search  median %.1f ms, best %.1f ms, %.1f ms per 10,000 cells\n", median, searched.front(),
              median / static_cast<double>(outcome.cells) * 1e4);
  std::printf("decide  median %.1f ms, best %.1f ms (model read, candidates estimated, flips)\n",
              decided[decided.size() / 2], decided.front());
  return 0;
}
