// What would make a job fit: changed settings, each estimated anew, in the order of what they cost.
//
// A lever is one setting with its values (checkpointing, micro batch, unit and bucket sizes, stage, offload by part and fraction, loss,
// optimizer kernel, sequence, context and tensor parallelism, FSDP for replicas, more ranks). Levers that fit alone come first; where none does, combinations of two and three are tried.
// The global batch stays as it is (a smaller micro batch is paid with accumulation, more ranks with less of it) unless the job states none
// and it cannot be divided: then the change says so.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/memory/memory.hpp"

namespace shardfit::memory {

struct Change {
  std::string key;                 // JSON pointer: "/plan/micro_batch", "/job/loss"
  std::string from, to;            // as written in the files
};

struct Advice {
  std::vector<Change> changes;     // one, or several that only together suffice
  job::Job job;                    // with the changes made
  job::Plan plan;
  std::int64_t frees = 0;          // bytes of the device's 95 % bound
  std::int64_t frees_host = 0;     // bytes of a node's memory
  bool for_host = false;           // that is what is short
  std::int64_t device_peak_high = 0, host = 0, nvme = 0;
  std::int64_t gpus = 0;           // of the changed plan
  std::optional<double> slower;    // GPU seconds a sequence, relative: 0.25 = a quarter more; negative = faster; absent = not known
  std::vector<std::string> costs;  // what that time goes into: "computes forward again in backward"
  bool makes_it_fit = false;
  std::string condition;           // what must hold besides ("412.0 GiB of host memory a node"); "" = nothing
};

// Seconds of one optimizer step of a job on a plan; absent where it cannot be told. The recompute, link, PCIe and CPU terms of
// selector/time come in this way; without it advice is ordered by what usually costs least.
using StepSeconds = std::function<std::optional<double>(const job::Job&, const job::Plan&)>;

// At most `most` pieces of advice, cheapest first; empty when the job fits as it is, or when no size is known to fit into. When nothing
// suffices, the combinations that free most, with makes_it_fit false. Throws what estimate_memory throws for the job as it is.
std::vector<Advice> advise(const Request& request, const StepSeconds& seconds = {}, std::size_t most = 6);

// What would make it fit by training otherwise (8-bit optimizer states, shorter sequences, adapters, a quantised base), alone or with
// recomputation, a smaller micro batch or a loss without logits. Not advice: the result is another.
std::vector<Advice> hints(const Request& request, const StepSeconds& seconds = {});

// "activation_checkpointing \"none\" -> \"full\": frees 31.20 GiB, 24 % more GPU time a step (computes forward again in backward)"
std::string to_words(const Advice& advice);

}  // namespace shardfit::memory
