// The state of a run between its steps, and what happens around them: saving, resuming, evaluating, telling.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/collective.hpp"
#include "runtime/comm/world.hpp"
#include "runtime/data/dataset.hpp"
#include "runtime/data/order.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/train/inputs.hpp"
#include "runtime/train/metrics.hpp"
#include "runtime/train/progress.hpp"

namespace shardfit::train {

class Run {
 public:
  Run(const Inputs& inputs, const Options& options, comm::World& world, comm::Collective& collective);
  ~Run();
  int execute();  // 0 completed, 75 stopped on request; throws Error for everything else
  void fail(const std::string& message, int status) noexcept;  // the last lines of metrics.jsonl, and a dump

 private:
  struct StepResult {
    double loss = 0, grad_norm = 0, learning_rate = 0, seconds = 0;
    std::int64_t supervised = 0, rows = 0, first = 0;
    std::int64_t allocated_peak = 0;  // of the fullest rank
    bool stop = false, skipped = false;
    std::vector<std::int64_t> sample_ids;
  };

  void open_data();
  std::int64_t total_steps() const;
  void start_weights();  // resume, load or draw
  std::optional<std::string> checkpoint_to_resume() const;
  StepResult one_step(std::int64_t step);
  void tell(std::int64_t step, const StepResult& result);
  void save(std::int64_t step);
  void evaluate(std::int64_t step);
  bool saves_at(std::int64_t step) const;
  std::vector<data::Row> rows_of(const data::Batch& batch, std::int64_t micro_step) const;
  void event(nlohmann::ordered_json object);
  void write_start();
  bool first_rank() const { return collective_.rank() == 0; }

  const Inputs& inputs_;
  const Options& options_;
  comm::World& world_;
  comm::Collective& collective_;
  const std::string output_;
  std::string attempt_;  // a word for temporary folders, the same on all ranks
  std::int64_t host_base_ = 0;
  Metrics metrics_, rank_metrics_;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  std::unique_ptr<data::Dataset> dataset_, eval_dataset_;
  std::unique_ptr<data::Order> order_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<Progress> progress_;
  std::int64_t done_ = 0, updates_ = 0, total_ = 0;  // steps done, steps that updated, steps in all
  std::int64_t tokens_seen_ = 0, last_saved_ = -1;
  std::int64_t at_ = 1;  // the step in work, for what is said of a failure
  bool ended_ = false;
};

// A row of the data as the engine takes it; `rows` must outlive the result.
engine::MicroBatch micro_batch_of(const std::vector<data::Row>& rows, const std::vector<std::int64_t>& samples);

}  // namespace shardfit::train
