#include "runtime/probe/rates.hpp"

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "regions/base/time.hpp"
#include "runtime/device/pool.hpp"
#include "runtime/probe/steps.hpp"
#include "runtime/probe/stopwatch.hpp"
#include "selector/schedule/activations.hpp"

namespace shardfit::probe {
namespace {

using Json = nlohmann::ordered_json;
using std::int64_t;

// Operands are taken from a region of about a block's working set, one after another and around again: as warm or cold
// as in a step, where a weight was gathered and an activation computed a moment ago.
constexpr int64_t kArenaBytes = int64_t{192} << 20;

class Arena {
 public:
  Arena() : region_("probe operands", kArenaBytes) {
    // Small numbers of both signs: denormals and infinities would slow the loops down.
    float* values = region_.as<float>();
    for (int64_t i = 0; i < kArenaBytes / 4; ++i)
      values[i] = 0.01f * static_cast<float>((i * 2654435761u >> 7) % 201) - 1.0f;
  }
  void* take(int64_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    if (next_ + bytes > kArenaBytes) next_ = 0;
    void* place = region_.bytes_at(next_);
    next_ += bytes;
    return place;
  }

 private:
  device::Region region_;
  int64_t next_ = 0;
};

struct Shape {
  int64_t m, k, n;
};

// Sides of small to large models; the last stands for output projections, whose rows come in tiles of 2^23 logits.
constexpr Shape kQuickShapes[] = {{512, 256, 256},   {512, 256, 1024},  {512, 1024, 256},  {512, 768, 768},
                                  {512, 768, 192},   {512, 768, 2304},  {512, 2304, 768},  {128, 768, 2304},
                                  {2048, 768, 768},  {2048, 768, 2304}, {512, 2048, 2048}, {512, 2048, 5632},
                                  {512, 5632, 2048}, {128, 2048, 2048}, {160, 768, 49152}};
constexpr Shape kMoreShapes[] = {{64, 256, 256},    {2048, 256, 256},   {64, 768, 768},    {64, 768, 2304},
                                 {2048, 2304, 768}, {128, 2304, 768},   {512, 512, 512},   {512, 512, 2048},
                                 {512, 2048, 512},  {2048, 2048, 2048}, {512, 4096, 4096}, {512, 4096, 14336},
                                 {64, 2048, 2048},  {160, 2048, 49152}, {160, 256, 49152}};

class Probe {
 public:
  Probe(comm::Collective& collective, const RatesOptions& options)
      : collective_(collective),
        options_(options),
        kernels_(kernels::make_cpu_kernels(options.type)),
        watch_(collective, options.threads, options.quick ? 0.05 : 0.4),
        width_(kernels::width_of(options.type)) {}

  Json run() {
    Json record;
    record["ranks"] = collective_.ranks();
    record["threads"] = options_.threads;
    record["type"] = options_.type == kernels::Type::kFp32 ? "fp32" : "bf16";
    record["as_of"] = format_time(now_seconds());
    record["quick"] = options_.quick;
    products(record);
    attention(record);
    elementwise(record);
    loss(record);
    optimizer(record);
    collectives(record);
    record["disturbed"] = collective_.largest(watch_.disturbed());
    record["steps"] = measure_steps(collective_, options_.threads, options_.type, options_.quick);
    return record;
  }

 private:
  void* values(int64_t elements) { return arena_.take(elements * width_); }

  void product(Json& list, const Shape& s) {
    const kernels::LinearShape shape{s.m, s.k, s.n, kernels::WeightLayout::kOutIn};
    const double forward = watch_.alone(
        [&] { kernels_->linear(shape, values(s.m * s.k), values(s.k * s.n), nullptr, scratch(s.m * s.n)); });
    const double input = watch_.alone([&] {
      kernels_->linear_backward_input(shape, values(s.m * s.n), values(s.k * s.n), scratch(s.m * s.k), false);
    });
    const double weight = watch_.alone([&] {
      kernels_->linear_backward_weight(shape, values(s.m * s.n), values(s.m * s.k), scratch(s.k * s.n), options_.type,
                                       nullptr, false, nullptr, 0);
    });
    list.push_back({s.m, s.k, s.n, forward, input, weight});
  }

  void products(Json& record) {
    Json list = Json::array();
    for (const Shape& s : kQuickShapes) product(list, s);
    if (!options_.quick)
      for (const Shape& s : kMoreShapes) product(list, s);
    record["gemm"] = list;
  }

  void attention(Json& record) {
    Json list = Json::array();
    const std::vector<std::pair<int64_t, int64_t>> sizes =
        options_.quick ? std::vector<std::pair<int64_t, int64_t>>{{128, 64}, {512, 64}, {512, 128}, {2048, 64}}
                       : std::vector<std::pair<int64_t, int64_t>>{{64, 64},   {128, 64},  {256, 64},  {512, 64},
                                                                  {1024, 64}, {2048, 64}, {512, 128}, {2048, 128}};
    constexpr int64_t heads = 8;
    for (const auto& [sequence, dim] : sizes) {
      schedule::Sizes tile_sizes;
      tile_sizes.geometry.head_dim = dim;
      tile_sizes.sequence = sequence;
      tile_sizes.precision.compute = options_.type == kernels::Type::kFp32 ? job::DType::kFp32 : job::DType::kBf16;
      kernels::AttentionShape shape;
      shape.heads = shape.kv_heads = heads;
      shape.head_dim = dim;
      shape.row_q = shape.row_k = shape.row_v = shape.row_out = heads * dim;
      shape.scale = 1 / std::sqrt(static_cast<double>(dim));
      const kernels::Document document{0, sequence, 0};
      shape.documents = {&document, 1};
      shape.rows = shape.sequence = sequence;
      shape.workers = options_.threads;
      shape.tile_bytes = schedule::attention_tile_bytes(tile_sizes);
      const int64_t elements = sequence * heads * dim;
      device::Region tiles("probe tiles", shape.tile_bytes * shape.workers), sums("probe sums", sequence * heads * 4),
          delta("probe deltas", sequence * heads * 4);
      void* out = scratch(elements);
      const double forward = watch_.alone([&] {
        kernels_->attention(shape, values(elements), values(elements), values(elements), out, sums.as<float>(),
                            tiles.data());
      });
      const double backward = watch_.alone([&] {
        kernels_->attention_backward(shape, values(elements), values(elements), values(elements), out, values(elements),
                                     sums.as<float>(), delta.as<float>(), gradient(0, elements), gradient(1, elements),
                                     gradient(2, elements), tiles.data());
      });
      list.push_back({sequence, heads, heads, dim, forward, backward});
    }
    record["attention"] = list;
  }

  static Json rate(double forward, double backward, int64_t elements) {
    return {{"forward", forward / static_cast<double>(elements)},
            {"backward", backward / static_cast<double>(elements)}};
  }

  void elementwise(Json& record) {
    constexpr int64_t rows = 512, width = 768, elements = rows * width;
    const kernels::NormShape norm{rows, width, 1e-5};
    device::Region stats("probe statistics", rows * 2 * 4), positions("probe positions", rows * 4),
        table("probe table", rows * 64 * 4);
    for (int64_t i = 0; i < rows; ++i) positions.as<std::int32_t>()[i] = static_cast<std::int32_t>(i);

    double forward = watch_.alone(
        [&] { kernels_->rms_norm(norm, values(elements), values(width), scratch(elements), stats.as<float>()); });
    double backward = watch_.alone([&] {
      kernels_->rms_norm_backward(norm, values(elements), values(elements), values(width), stats.as<float>(),
                                  scratch(elements), true, gradient(0, width), options_.type, false);
    });
    record["rms_norm"] = rate(forward, backward, elements);
    forward = watch_.alone([&] {
      kernels_->layer_norm(norm, values(elements), values(width), values(width), scratch(elements), stats.as<float>());
    });
    backward = watch_.alone([&] {
      kernels_->layer_norm_backward(norm, values(elements), values(elements), values(width), stats.as<float>(),
                                    scratch(elements), true, gradient(0, width), gradient(1, width), options_.type,
                                    false);
    });
    record["layer_norm"] = rate(forward, backward, elements);
    // Turning back and forth keeps the values as they are.
    bool back = false;
    const double turn = watch_.alone([&] {
      kernels_->rope(scratch(elements), rows, width / 64, 64, positions.as<std::int32_t>(), table.as<float>(), back);
      back = !back;
    });
    record["rope"] = rate(turn, turn, elements);
    forward = watch_.alone([&] { kernels_->swiglu(values(elements), values(elements), scratch(elements), elements); });
    backward = watch_.alone([&] {
      kernels_->swiglu_backward(values(elements), values(elements), fresh(elements), scratch(elements), elements);
    });
    record["gated"] = rate(forward, backward, elements);
    forward = watch_.alone([&] { kernels_->gelu(values(elements), scratch(elements), elements); });
    backward = watch_.alone([&] { kernels_->gelu_backward(values(elements), fresh(elements), elements); });
    record["activation"] = rate(forward, backward, elements);
    const double add =
        watch_.alone([&] { kernels_->add(values(elements), values(elements), scratch(elements), elements); });
    record["residual"] = rate(add, add, elements);
  }

  void loss(Json& record) {
    constexpr int64_t rows = 128, vocabulary = 32768, width = 768;
    device::Region targets("probe targets", rows * 4), losses("probe losses", rows * 4), ids("probe ids", rows * 4);
    for (int64_t i = 0; i < rows; ++i)
      targets.as<std::int32_t>()[i] = ids.as<std::int32_t>()[i] = static_cast<std::int32_t>(i * 7919 % 20000);
    const double scale = 1e-3;
    void* logits = fresh(rows * vocabulary);
    const double entropy = watch_.alone([&] {
      kernels_->cross_entropy(logits, targets.as<std::int32_t>(), rows, vocabulary, losses.as<float>(), &scale);
    });
    record["cross_entropy"] = rate(entropy, 0, rows * vocabulary);
    void* rows_of_table = values(20000 * width);
    const double forward = watch_.alone(
        [&] { kernels_->embedding(rows_of_table, ids.as<std::int32_t>(), scratch(rows * width), rows, width, false); });
    const double backward = watch_.alone([&] {
      kernels_->embedding_backward(values(rows * width), ids.as<std::int32_t>(), rows, width, fresh(20000 * width),
                                   options_.type);
    });
    record["embedding"] = rate(forward, backward, rows * width);
  }

  void optimizer(Json& record) {
    constexpr int64_t elements = int64_t{1} << 22;
    device::Region parameters("probe parameters", elements * 4), gradients("probe gradients", elements * 4),
        first("probe first moments", elements * 4), second("probe second moments", elements * 4);
    for (int64_t i = 0; i < elements; ++i) parameters.as<float>()[i] = gradients.as<float>()[i] = 0.5f;
    kernels::AdamW settings;
    settings.learning_rate = 1e-4;
    const auto fp32 = kernels::Type::kFp32;
    const double step = watch_.alone([&] {
      kernels_->adamw(settings, parameters.data(), fp32, gradients.data(), fp32, first.data(), second.data(), fp32,
                      nullptr, fp32, elements);
    });
    record["adamw"] = step / static_cast<double>(elements);
    double sum = 0;
    const double norm = watch_.alone([&] { sum += kernels_->sum_of_squares(gradients.data(), fp32, elements); });
    record["norm"] = norm / static_cast<double>(elements) + 0 * sum;
    const double copy =
        watch_.alone([&] { kernels_->add_cast(gradients.data(), fp32, parameters.data(), fp32, elements); });
    record["clear"] = copy / static_cast<double>(elements);
  }

  void collectives(Json& record) {
    record["all_gather"] = record["reduce_scatter"] = record["all_reduce"] = Json::array();
    if (collective_.ranks() == 1) return;
    const auto type = options_.type == kernels::Type::kFp32 ? comm::Type::kFp32 : comm::Type::kBf16;
    for (int64_t total : {int64_t{1} << 16, int64_t{1} << 20, int64_t{1} << 23, int64_t{1} << 25, int64_t{1} << 27}) {
      const int64_t each = total / width_ / collective_.ranks() / 16 * 16;
      if (each <= 0) continue;
      device::Region whole("probe gathered", each * collective_.ranks() * width_), part("probe part", each * 4);
      const double bytes = static_cast<double>(each * collective_.ranks() * width_);
      record["all_gather"].push_back(
          {bytes, watch_.together([&] { collective_.all_gather(part.data(), whole.data(), each, type); })});
      record["reduce_scatter"].push_back({bytes, watch_.together([&] {
                                            collective_.reduce_scatter(whole.data(), type, part.data(),
                                                                       comm::Type::kFp32, each);
                                          })});
      record["all_reduce"].push_back(
          {bytes, watch_.together([&] { collective_.all_reduce(whole.data(), each * collective_.ranks(), type); })});
    }
  }

  // A result nobody reads; repeated calls write the same place, as a step's scratch buffers are written.
  void* scratch(int64_t elements) { return reserve(scratch_, elements); }
  void* gradient(int which, int64_t elements) { return reserve(gradients_[which], elements); }
  // Worked on in place by repeated calls: its values drift, so it is not part of the arena.
  void* fresh(int64_t elements) { return reserve(fresh_, elements); }
  void* reserve(device::Region& region, int64_t elements) {
    if (region.bytes() < elements * 4) region = device::Region("probe results", elements * 4);
    return region.data();
  }

  comm::Collective& collective_;
  const RatesOptions options_;
  std::unique_ptr<kernels::Kernels> kernels_;
  Stopwatch watch_;
  const int64_t width_;
  Arena arena_;
  device::Region scratch_, fresh_, gradients_[3];
};

}  // namespace

std::string measure_rates(comm::Collective& collective, const RatesOptions& options) {
  const Json record = Probe(collective, options).run();
  return collective.rank() == 0 ? record.dump() : std::string();
}

}  // namespace shardfit::probe
