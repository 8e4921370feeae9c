// The JSON form of measured rates.
#include <fmt/format.h>
#include <cmath>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "selector/calibrate/calibration.hpp"

namespace shardfit::calibrate {
namespace {

using timing::AttentionSample;
using timing::GemmSample;
using timing::KernelRate;
using timing::StepSample;
using timing::TransferSample;

// No kernel or product of a probe takes longer than an hour; a rate beyond is a damaged record.
constexpr double kMost = 3600;

double positive(const Json& value, const std::string& where) {
  if (!value.is_number())
    throw Error("wrong_type", where, fmt::format("{} is not a number", brief(value)), "run shardfit calibrate again");
  const double number = value.get<double>();
  if (!std::isfinite(number) || number < 0 || number > 1e15)
    throw Error("out_of_range", where, fmt::format("{} is not a measured value", brief(value)),
                "run shardfit calibrate again");
  return number;
}

KernelRate read_kernel(ObjectReader& r, std::string_view key) {
  const Json* value = r.get(key);
  if (!value) return {};
  ObjectReader k(*value, r.at(key));
  KernelRate rate;
  rate.forward = k.required_number("forward", 0, kMost);
  rate.backward = k.required_number("backward", 0, kMost);
  k.finish();
  return rate;
}

// A list of rows of `width` numbers each.
std::vector<std::vector<double>> read_rows(ObjectReader& r, std::string_view key, std::size_t width) {
  std::vector<std::vector<double>> rows;
  const Json* list = r.get(key);
  if (!list) return rows;
  if (!list->is_array() || list->size() > 10000)
    throw Error("wrong_type", r.at(key), fmt::format("{} is not a list of samples", brief(*list)));
  for (std::size_t i = 0; i < list->size(); ++i) {
    const std::string where = fmt::format("{}/{}", r.at(key), i);
    const Json& row = (*list)[i];
    if (!row.is_array() || row.size() != width)
      throw Error("wrong_type", where, fmt::format("{} is not a list of {} numbers", brief(row), width));
    std::vector<double> numbers;
    for (std::size_t j = 0; j < width; ++j) {
      numbers.push_back(positive(row[j], fmt::format("{}/{}", where, j)));
      if (numbers.back() <= 0)
        throw Error("out_of_range", fmt::format("{}/{}", where, j), "a measured value must be above 0");
    }
    rows.push_back(std::move(numbers));
  }
  return rows;
}

std::vector<TransferSample> read_transfers(ObjectReader& r, std::string_view key) {
  std::vector<TransferSample> samples;
  for (const auto& row : read_rows(r, key, 2)) {
    if (!samples.empty() && row[0] <= samples.back().bytes) throw Error("out_of_range", r.at(key), "sizes must ascend");
    samples.push_back({row[0], row[1]});
  }
  return samples;
}

void read_steps(ObjectReader& r, BusyRates& rates) {
  const Json* list = r.get("steps");
  if (!list) return;
  if (!list->is_array() || list->size() > 100)
    throw Error("wrong_type", r.at("steps"), fmt::format("{} is not a list of measured steps", brief(*list)));
  for (std::size_t i = 0; i < list->size(); ++i) {
    ObjectReader s((*list)[i], fmt::format("{}/{}", r.at("steps"), i));
    StepSample sample;
    sample.config = s.required("config").dump();
    sample.sequence = static_cast<int>(s.required_integer("sequence", 1, 1 << 24));
    sample.micro_batch = static_cast<int>(s.required_integer("micro_batch", 1, 1 << 20));
    sample.stage = static_cast<int>(s.required_integer("stage", 0, 3));
    ObjectReader seconds(s.required("seconds"), s.at("seconds"));
    sample.compute = seconds.required_number("compute", 0, kMost);
    sample.communication = seconds.required_number("communication", 0, kMost);
    sample.update = seconds.required_number("update", 0, kMost);
    seconds.finish();
    s.finish();
    rates.steps.push_back(std::move(sample));
  }
}

OrderedJson kernel_json(const KernelRate& rate) { return {{"forward", rate.forward}, {"backward", rate.backward}}; }

}  // namespace

BusyRates parse_rates(const Json& object, const std::string& where) {
  ObjectReader r(object, where);
  BusyRates rates;
  rates.ranks = static_cast<int>(r.required_integer("ranks", 1, 4096));
  rates.threads = static_cast<int>(r.required_integer("threads", 1, 4096));
  rates.type = r.one_of("type", {"fp32", "bf16"}).value_or("fp32");
  rates.as_of = r.string("as_of").value_or("");
  rates.software = r.string("software").value_or("");
  rates.quick = r.boolean("quick").value_or(true);
  rates.disturbed = r.number("disturbed", 0, 1).value_or(0);
  for (const auto& row : read_rows(r, "gemm", 6))
    rates.gemms.push_back({row[0], row[1], row[2], row[3], row[4], row[5]});
  for (const auto& row : read_rows(r, "attention", 6))
    rates.attention.push_back({row[0], row[1], row[2], row[3], row[4], row[5]});
  rates.rms_norm = read_kernel(r, "rms_norm");
  rates.layer_norm = read_kernel(r, "layer_norm");
  rates.rope = read_kernel(r, "rope");
  rates.gated = read_kernel(r, "gated");
  rates.activation = read_kernel(r, "activation");
  rates.residual = read_kernel(r, "residual");
  rates.cross_entropy = read_kernel(r, "cross_entropy");
  rates.embedding = read_kernel(r, "embedding");
  rates.adamw = r.required_number("adamw", 0, kMost);
  rates.norm = r.number("norm", 0, kMost).value_or(0);
  rates.clear = r.number("clear", 0, kMost).value_or(0);
  rates.all_gather = read_transfers(r, "all_gather");
  rates.reduce_scatter = read_transfers(r, "reduce_scatter");
  rates.all_reduce = read_transfers(r, "all_reduce");
  read_steps(r, rates);
  r.finish();
  if (rates.gemms.empty())
    throw Error("missing_key", where + "/gemm", "no matrix product was measured", "run shardfit calibrate again");
  if (rates.attention.empty())
    throw Error("missing_key", where + "/attention", "no attention was measured", "run shardfit calibrate again");
  if (rates.ranks > 1 && (rates.all_gather.empty() || rates.reduce_scatter.empty() || rates.all_reduce.empty()))
    throw Error("missing_key", where + "/all_gather", "no collective was measured", "run shardfit calibrate again");
  fit_factors(rates);
  return rates;
}

OrderedJson to_json(const BusyRates& rates) {
  OrderedJson out;
  out["ranks"] = rates.ranks;
  out["threads"] = rates.threads;
  out["type"] = rates.type;
  out["as_of"] = rates.as_of;
  out["software"] = rates.software;
  out["quick"] = rates.quick;
  out["disturbed"] = rates.disturbed;
  out["gemm"] = OrderedJson::array();
  for (const GemmSample& s : rates.gemms) out["gemm"].push_back({s.m, s.k, s.n, s.forward, s.input, s.weight});
  out["attention"] = OrderedJson::array();
  for (const AttentionSample& s : rates.attention)
    out["attention"].push_back({s.sequence, s.heads, s.kv_heads, s.head_dim, s.forward, s.backward});
  out["rms_norm"] = kernel_json(rates.rms_norm);
  out["layer_norm"] = kernel_json(rates.layer_norm);
  out["rope"] = kernel_json(rates.rope);
  out["gated"] = kernel_json(rates.gated);
  out["activation"] = kernel_json(rates.activation);
  out["residual"] = kernel_json(rates.residual);
  out["cross_entropy"] = kernel_json(rates.cross_entropy);
  out["embedding"] = kernel_json(rates.embedding);
  out["adamw"] = rates.adamw;
  out["norm"] = rates.norm;
  out["clear"] = rates.clear;
  const auto transfers = [&](const char* key, const std::vector<TransferSample>& samples) {
    out[key] = OrderedJson::array();
    for (const TransferSample& s : samples) out[key].push_back({s.bytes, s.seconds});
  };
  transfers("all_gather", rates.all_gather);
  transfers("reduce_scatter", rates.reduce_scatter);
  transfers("all_reduce", rates.all_reduce);
  out["steps"] = OrderedJson::array();
  for (const StepSample& sample : rates.steps) {
    OrderedJson step;
    step["config"] = OrderedJson::parse(sample.config);
    step["sequence"] = sample.sequence;
    step["micro_batch"] = sample.micro_batch;
    step["stage"] = sample.stage;
    step["seconds"] = {{"compute", sample.compute}, {"communication", sample.communication}, {"update", sample.update}};
    out["steps"].push_back(std::move(step));
  }
  return out;
}

}  // namespace shardfit::calibrate
