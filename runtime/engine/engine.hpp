// One rank's share of the training: owns the buffers that the schedule lists, and runs its events.
//
// Parameters, gradients and AdamW's states of a unit lie in flat buffers, whole (stage 0) or a rank's shard (stage 3).
// Nothing is allocated after construction.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/layout.hpp"
#include "runtime/checkpoint/weights.hpp"
#include "runtime/comm/collective.hpp"
#include "runtime/device/pool.hpp"
#include "runtime/models/block.hpp"
#include "selector/schedule/step.hpp"

namespace shardfit::engine {

// The rows of one micro batch that one rank computes, as the data part delivers them. At most micro_batch rows; none is
// fine.
struct MicroBatch {
  struct Row {
    std::int64_t sample = 0;  // position in the run's order
    std::int64_t length = 0;  // tokens before the padding
    std::span<const std::int32_t> ids, labels, positions, document_starts;
  };
  std::vector<Row> rows;
};

struct OptimizerSettings {
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0, max_grad_norm = 0;
};

struct Gradients {
  double norm = 0;    // of the whole model, before clipping
  std::string where;  // parameter with a value that is not finite, on this rank; "" if none
};

class Engine {
 public:
  // `collective` must outlive the engine and have schedule.ranks ranks. `kernels`: null = the CPU's own; they compute
  // on buffers of `kind`.
  Engine(const schedule::Step& schedule, const models::Math& math, comm::Collective& collective, std::uint64_t seed,
         std::unique_ptr<kernels::Kernels> kernels = nullptr, device::Kind kind = device::Kind::kCpu);
  ~Engine();

  const schedule::Step& schedule() const { return step_; }

  // Fills this rank's parameters. load: from a Hugging Face folder, reading only what the rank holds.
  void load(const checkpoint::HuggingFaceWeights& weights);
  // Drawn from the seed and each parameter's name, the same for any number of ranks: normal with deviation `range` for
  // matrices and embeddings (GPT-2's residual projections divided by sqrt(2 layers), as transformers draws them), 1 for
  // norms, 0 for biases.
  void draw(double range);
  // Parameters, and with `states` AdamW's states; returns the parameters that had no states.
  std::vector<std::string> restore(const checkpoint::Checkpoint& saved, bool states);

  // Forward and backward of one micro step; gradients are added up. `scale`: what each token's loss counts, 1 /
  // supervised tokens of the global batch. Returns the sum of the losses of this rank's supervised tokens.
  double micro_step(const MicroBatch& batch, std::int64_t step, std::int64_t micro_step, std::int64_t micro_steps,
                    double scale);
  Gradients measure_gradients();
  // AdamW with clipping; `step` counts from 1 for the bias correction.
  void update(const OptimizerSettings& settings, std::int64_t step, double norm);

  // Sum of the losses of this rank's supervised tokens, without gradients. A collective operation.
  double evaluate(const MicroBatch& batch);
  // Forward only; calls take(row, first_token, tokens, logits) with fp32 logits [tokens][vocabulary]. A collective
  // operation.
  using TakeLogits =
      std::function<void(std::int64_t row, std::int64_t first_token, std::int64_t tokens, const float* logits)>;
  void logits(const MicroBatch& batch, const TakeLogits& take);

  // For checkpoints: the units and this rank's slice of them as fp32; the span is valid until the next call.
  std::vector<checkpoint::FlatUnit> flat_units() const;
  std::span<const float> slice(std::size_t unit, checkpoint::Kind kind);
  std::uint64_t parameters_hash() const;  // of the bytes this rank holds

  // Test and probe access: gradients of a whole parameter as fp32, gathered from all ranks (a collective operation).
  std::vector<float> gradient_of(const std::string& parameter);
  std::vector<float> parameter_of(const std::string& parameter);
  // Called around every event that takes time: for probes.
  using Watch = std::function<void(const schedule::Event& event, double seconds)>;
  void watch(Watch watch) { watch_ = std::move(watch); }

 private:
  struct Target;
  models::Flat compute_weights(const schedule::Event& event) const;
  models::Flat fresh_gradients(int unit) const;
  void take_batch(const MicroBatch& batch);
  void run(const schedule::Event& event, const models::StepContext& context, bool training, double scale,
           bool accumulate, bool last);
  void settle_gradients(int unit, bool accumulate);
  void reduce(int unit, bool accumulate);
  void refresh_compute_copy(int unit);
  void fill(const std::function<void(const checkpoint::FlatUnit&, std::span<float>)>& read, const char* buffer,
            job::DType type);
  std::vector<float> whole(const char* buffer, job::DType type, const std::string& parameter);
  char* held(const char* buffer, int unit, job::DType type) const;
  const device::Region& region(const std::string& name) const { return regions_.at(name); }
  char* stream(int block) const;
  // `elements` of type `type` on the device as fp32 on the host, and back.
  void fetch(const void* from, job::DType type, float* to, std::int64_t elements) const;
  void bring(const float* from, void* to, job::DType type, std::int64_t elements) const;

  const schedule::Step step_;
  const models::Math math_;
  comm::Collective& collective_;
  const std::uint64_t seed_;
  const device::Kind kind_;
  const std::unique_ptr<kernels::Kernels> host_kernels_ =
      kernels::make_cpu_kernels(kernels::Type::kFp32);  // conversions of host memory
  std::unique_ptr<kernels::Kernels> kernels_;
  std::map<std::string, device::Region> regions_;
  std::vector<std::int64_t> held_offsets_;  // elements before each unit in the flat buffers
  std::unique_ptr<models::Family> family_;
  models::Batch batch_;
  double loss_ = 0;
  std::vector<float> converted_;  // a slice in fp32, where the buffers are narrower
  Watch watch_;
};

kernels::Type kernel_type(job::DType type);
comm::Type comm_type(job::DType type);

}  // namespace shardfit::engine
