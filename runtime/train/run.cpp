#include "runtime/train/run.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "runtime/checkpoint/complete.hpp"
#include "runtime/device/meter.hpp"
#include "runtime/train/learning_rate.hpp"
#include "runtime/train/signals.hpp"
#include "selector/memory/own_runtime.hpp"

namespace shardfit::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
constexpr int kExitStopped = 75;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

job::Job with_absolute_paths(const job::Job& job) {
  auto absolute = job;
  absolute.model = fs::absolute(job.model_path()).lexically_normal().string();
  if (absolute.data)
    for (auto* list : {&absolute.data->train, &absolute.data->eval})
      for (auto& path : *list) path = fs::absolute(job.resolve(path)).lexically_normal().string();
  return absolute;
}

// Model and data as absolute paths, kept beside the job of a checkpoint: a job that names the same places in other
// words may resume.
nlohmann::json places_of(const job::Job& job) {
  const auto absolute = nlohmann::json::parse(job::to_json(with_absolute_paths(job)).dump());
  const nlohmann::json::json_pointer train("/data/train"), eval("/data/eval");
  const bool data = job.data.has_value();
  return {{"model", absolute.at("model")},
          {"train", data ? absolute.at(train) : nlohmann::json()},
          {"eval", data ? absolute.at(eval) : nlohmann::json()}};
}

nlohmann::json with_paths_as_saved(const job::Job& job, const std::string& saved_job, const nlohmann::json& training) {
  auto now = nlohmann::json::parse(job::to_json(job).dump());
  if (!training.contains("places") || !training.at("places").is_object()) return now;
  const auto saved = nlohmann::json::parse(saved_job), places = places_of(job);
  for (const auto& [key, pointer] :
       {std::pair{"model", "/model"}, std::pair{"train", "/data/train"}, std::pair{"eval", "/data/eval"}}) {
    const nlohmann::json::json_pointer at(pointer);
    if (training.at("places").value(key, nlohmann::json()) == places.at(key) && saved.contains(at) && now.contains(at))
      now[at] = saved.at(at);
  }
  return now;
}

}  // namespace

engine::MicroBatch micro_batch_of(const std::vector<data::Row>& rows, const std::vector<std::int64_t>& samples) {
  engine::MicroBatch batch;
  for (std::size_t i = 0; i < rows.size(); ++i)
    batch.rows.push_back(
        {samples[i], rows[i].length, rows[i].ids, rows[i].labels, rows[i].positions, rows[i].document_starts});
  return batch;
}

Run::Run(const Inputs& inputs, const Options& options, comm::World& world, comm::Collective& collective)
    : inputs_(inputs), options_(options), world_(world), collective_(collective), output_(inputs.job.output) {
  attempt_ =
      world.share(fmt::format("{}-{}", ::getpid(), std::chrono::system_clock::now().time_since_epoch().count() / 1000));
  if (first_rank()) {
    std::error_code failure;
    fs::create_directories(output_, failure);
    if (failure)
      throw Error("storage_failed", "/output", fmt::format("cannot make {}: {}", output_, failure.message()),
                  "choose another output folder", checkpoint::kExitStorage);
    metrics_ = Metrics(fs::path(output_) / "metrics.jsonl");
    end_at_once_tells(metrics_.descriptor());
  }
  collective_.barrier();
  if (const char* wanted = std::getenv("SHARDFIT_RANK_METRICS"); wanted && std::string(wanted) == "1") {
    fs::create_directories(fs::path(output_) / "ranks");
    rank_metrics_ = Metrics(fs::path(output_) / "ranks" / fmt::format("metrics-{}.jsonl", collective_.rank()));
  }
}

Run::~Run() { end_at_once_tells(-1); }

void Run::event(nlohmann::ordered_json object) { metrics_.line(object); }

void Run::open_data() {
  const auto& job = inputs_.job;
  const double wait = world_.timeout_seconds();
  const bool needs_tokenizer =
      fs::exists(fs::path(inputs_.model_folder) / "tokenizer.json") && job.data && job.data->format != "tokens";
  if (needs_tokenizer)
    tokenizer_ = std::make_unique<tokenizer::Tokenizer>(tokenizer::Tokenizer::load(inputs_.model_folder));
  const auto end = tokenizer::end_of_text(inputs_.model_folder, tokenizer_.get());
  auto open = [&](bool eval) {
    return std::make_unique<data::Dataset>(data::Dataset::open(
        data::source_of(job, eval, output_, inputs_.model.vocabulary, tokenizer_.get(), end), wait));
  };
  dataset_ = open(false);
  for (const auto& warning : dataset_->warnings()) progress_->note(warning);
  if (job.data && !job.data->eval.empty()) eval_dataset_ = open(true);
  order_ = std::make_unique<data::Order>(dataset_->rows(), job.global_batch_sequences,
                                         static_cast<std::uint64_t>(job.train.seed), job.data->shuffle,
                                         job.train.dataloader_drop_last);
}

std::int64_t Run::total_steps() const {
  const auto& job = inputs_.job;
  if (job.duration_steps) return *job.duration_steps;
  if (job.duration_tokens) {
    const auto a_step = job.global_batch_sequences * job.sequence_length;
    return std::max<std::int64_t>((*job.duration_tokens + a_step - 1) / a_step, 1);
  }
  if (job.duration_epochs)
    return std::max<std::int64_t>(
        static_cast<std::int64_t>(std::ceil(*job.duration_epochs * static_cast<double>(order_->steps_per_epoch()))), 1);
  throw Error("missing_key", "/duration", "is missing: how long to train",
              "state {\"steps\": N}, {\"tokens\": N} or {\"epochs\": N}")
      .in_file(job.file);
}

std::optional<std::string> Run::checkpoint_to_resume() const {
  std::vector<std::string> candidates;  // newest first
  if (first_rank() && options_.resume != "never") {
    try {
      if (options_.resume != "auto") {
        candidates.push_back(checkpoint::resolve(options_.resume).string());
      } else {
        const auto found = checkpoint::list_complete(output_);
        for (const auto& one : found.complete) candidates.push_back(one.path.string());
        for (const auto& broken : found.broken) progress_->note("passed over " + broken);
        if (candidates.empty() && !found.broken.empty())
          throw Error("checkpoint_corrupt", "",
                      fmt::format("no checkpoint in {} is complete", checkpoint::checkpoints_folder(output_).string()),
                      "restore one, or start anew with --resume never", kExitFailed);
      }
    } catch (const Error& error) {
      world_.announce_failure(error.what(), error.exit_status);
      throw;
    }
  }
  candidates = split(world_.share(join(candidates, "\n")), '\n');
  std::erase(candidates, "");
  if (candidates.empty()) return std::nullopt;
  for (const auto& candidate : candidates) {
    std::optional<Error> failure;
    try {
      checkpoint::verify(candidate, collective_.rank(), collective_.ranks());
    } catch (const Error& error) {
      failure = error;
    }
    const double worst = collective_.largest(failure ? 1 + collective_.rank() : 0);
    if (worst == 0) return candidate;
    if (options_.resume != "auto" && failure) throw *failure;
    progress_->note(
        fmt::format("passed over {}: {}", candidate,
                    failure ? failure->what() : fmt::format("rank {} found damage", static_cast<int>(worst) - 1)));
  }
  throw Error("checkpoint_corrupt", "", "every checkpoint to resume from is damaged",
              "restore one, or start anew with --resume never", kExitFailed);
}

void Run::start_weights() {
  const auto& job = inputs_.job;
  if (const auto folder = checkpoint_to_resume()) {
    const auto saved = checkpoint::Checkpoint::open(*folder);
    const auto training = nlohmann::json::parse(saved.training_json());
    checkpoint::check_resumable(saved.job_json(), with_paths_as_saved(job, saved.job_json(), training).dump());
    if (training.value("data_hash", dataset_->content_hash()) != dataset_->content_hash())
      throw Error("resume_mismatch", "/data/train", "the files are not those that the checkpoint was trained on",
                  "restore them, or start anew with --resume never");
    const auto fresh = engine_->restore(saved, true);
    if (!fresh.empty())
      progress_->note(fmt::format("{} parameters had no optimizer states: they start at zero", fresh.size()));
    done_ = last_saved_ = saved.step();
    at_ = done_ + 1;
    updates_ = training.value("updates", done_);
    tokens_seen_ = training.value("tokens", std::int64_t{0});
    event({{"event", "resume"}, {"step", done_}, {"path", *folder}});
    progress_->note(fmt::format("resumed from {}", *folder));
    return;
  }
  if (job.train.init == "random") {
    const auto config = read_json_file(fs::path(inputs_.model_folder) / "config.json");
    engine_->draw(config.value("initializer_range", 0.02));
  } else {
    engine_->load(checkpoint::HuggingFaceWeights(inputs_.model_folder));
  }
}

void Run::write_start() {
  const auto planned = memory::own_runtime_memory(inputs_.step);
  event({{"event", "start"},
         {"ranks", collective_.ranks()},
         {"model_type", inputs_.model.model_type},
         {"planned",
          {{"allocated_peak", planned.allocated_peak},
           {"host", planned.host},
           {"host_base", host_base_},
           {"host_pinned", planned.host_pinned},
           {"nvme", planned.nvme}}},
         {"steps", total_},
         {"samples", dataset_->rows()},
         {"communication", std::string(collective_.backend())}});
  write_file_atomic(fs::path(output_) / "job.json", job::to_json(with_absolute_paths(inputs_.job)).dump(2) + "\n");
  write_file_atomic(fs::path(output_) / "plan.json", job::to_json(inputs_.plan).dump(2) + "\n");
}

std::vector<data::Row> Run::rows_of(const data::Batch& batch, std::int64_t micro_step) const {
  std::vector<data::Row> rows;
  for (const auto position :
       data::positions_of(batch, micro_step, collective_.rank(), inputs_.plan.micro_batch, collective_.ranks()))
    rows.push_back(dataset_->row(order_->row(position)));
  return rows;
}

Run::StepResult Run::one_step(std::int64_t step) {
  const auto start = Clock::now();
  const auto& train = inputs_.job.train;
  const auto batch = order_->batch(step);
  const auto micro_steps = data::micro_steps(batch.count, inputs_.plan.micro_batch, collective_.ranks());
  std::vector<std::vector<data::Row>> rows;
  double mine = 0;
  for (std::int64_t micro = 0; micro < micro_steps; ++micro) {
    rows.push_back(rows_of(batch, micro));
    for (const auto& row : rows.back()) mine += static_cast<double>(row.supervised);
  }
  StepResult result{.first = batch.first};
  result.rows = batch.count;
  const double supervised = collective_.sum(mine);
  result.supervised = static_cast<std::int64_t>(supervised);
  if (train.log_sample_ids)
    for (std::int64_t p = 0; p < batch.count; ++p) result.sample_ids.push_back(order_->row(batch.first + p));

  double loss = 0;
  for (std::int64_t micro = 0; micro < micro_steps; ++micro) {
    const auto samples =
        data::positions_of(batch, micro, collective_.rank(), inputs_.plan.micro_batch, collective_.ranks());
    loss += engine_->micro_step(micro_batch_of(rows[static_cast<std::size_t>(micro)], samples), step, micro,
                                micro_steps, supervised > 0 ? 1.0 / supervised : 0);
  }
  const auto gradients = engine_->measure_gradients();
  // What all ranks must know of each other, in one exchange.
  struct Word {
    double loss, peak, stop, bad;
  };
  const Word own{loss, static_cast<double>(device::meter().peak()), stop_requested() ? 1.0 : 0.0,
                 !std::isfinite(loss) || !gradients.where.empty() ? 1.0 : 0.0};
  std::vector<Word> all(static_cast<std::size_t>(collective_.ranks()));
  collective_.exchange(&own, all.data(), sizeof own);
  int bad = -1;
  double total = 0;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    total += all[rank].loss;
    result.allocated_peak = std::max(result.allocated_peak, static_cast<std::int64_t>(all[rank].peak));
    result.stop = result.stop || all[rank].stop > 0;
    if (bad < 0 && (!std::isfinite(all[rank].loss) || all[rank].bad > 0)) bad = static_cast<int>(rank);
  }
  for (std::size_t rank = all.size(); rank-- > 0;)
    if (!std::isfinite(all[rank].loss))
      bad = static_cast<int>(rank);  // the first whose own loss is not finite is the cause
  result.loss = supervised > 0 ? total / supervised : std::nan("");
  result.grad_norm = gradients.norm;
  result.learning_rate = learning_rate_at(train, step, total_);
  if (bad >= 0 || !std::isfinite(gradients.norm)) {
    const auto message = fmt::format("loss or gradient is not finite in step {} on rank {}{}", step, std::max(bad, 0),
                                     gradients.where.empty() ? "" : " (" + gradients.where + ")");
    if (train.on_nonfinite != "skip")
      throw Error("not_finite", "", message, "lower the learning rate, or set train.on_nonfinite to \"skip\"",
                  kExitFailed);
    result.skipped = true;
    event({{"event", "skip"}, {"step", step}, {"rank", std::max(bad, 0)}, {"reason", message}});
  } else {
    ++updates_;
    engine_->update({result.learning_rate, train.adam_beta1, train.adam_beta2, train.adam_epsilon, train.weight_decay,
                     train.max_grad_norm},
                    updates_, gradients.norm);
  }
  tokens_seen_ += batch.count * inputs_.job.sequence_length;
  result.seconds = seconds_since(start);
  return result;
}

void Run::tell(std::int64_t step, const StepResult& result) {
  const auto planned = memory::own_runtime_memory(inputs_.step).allocated_peak;
  const auto tokens = result.rows * inputs_.job.sequence_length;
  const double rate = result.seconds > 0 ? static_cast<double>(tokens) / result.seconds : 0;
  nlohmann::ordered_json memory{{"allocated_peak", result.allocated_peak},
                                {"planned_peak", planned},
                                {"host", 0},
                                {"host_pinned", 0},
                                {"nvme", 0}};
  nlohmann::ordered_json line{{"step", step},
                              {"loss", number_or_null(result.loss)},
                              {"grad_norm", number_or_null(result.grad_norm)},
                              {"learning_rate", result.learning_rate},
                              {"tokens", tokens},
                              {"supervised_tokens", result.supervised},
                              {"tokens_per_second", rate},
                              {"step_seconds", result.seconds},
                              {"samples", {result.first, result.first + result.rows - 1}},
                              {"memory", memory}};
  if (inputs_.job.train.log_sample_ids) line["sample_ids"] = result.sample_ids;
  event(line);
  rank_metrics_.line({{"step", step},
                      {"loss", number_or_null(result.loss)},
                      {"grad_norm", number_or_null(result.grad_norm)},
                      {"parameters_hash",
                       std::getenv("SHARDFIT_RANK_METRICS") ? fmt::format("{:016x}", engine_->parameters_hash()) : ""},
                      {"memory",
                       {{"allocated_peak", device::meter().peak()},
                        {"planned_peak", planned},
                        {"host", 0},
                        {"host_pinned", 0},
                        {"nvme", 0}}}});
  progress_->step(step, result.loss, result.learning_rate, result.grad_norm, rate);
}

bool Run::saves_at(std::int64_t step) const {
  const auto& train = inputs_.job.train;
  return step == total_ || (train.save_steps > 0 && step % train.save_steps == 0) ||
         std::find(train.save_at.begin(), train.save_at.end(), step) != train.save_at.end();
}

void Run::save(std::int64_t step) {
  const auto start = Clock::now();
  auto& files = checkpoint::real_files();
  checkpoint::SaveState state;
  state.step = step;
  state.ranks = collective_.ranks();
  state.units = engine_->flat_units();
  state.job_json = job::to_json(inputs_.job).dump();
  state.plan_json = job::to_json(inputs_.plan).dump();
  state.training_json = nlohmann::ordered_json{{"updates", updates_},
                                               {"tokens", tokens_seen_},
                                               {"data_hash", dataset_->content_hash()},
                                               {"rows", dataset_->rows()},
                                               {"places", places_of(inputs_.job)}}
                            .dump();
  if (inputs_.model.tied_embeddings) state.tied = {{inputs_.model.head_parameter, inputs_.model.embedding_parameter}};
  state.model_folder = inputs_.model_folder;
  const auto tag = fmt::format("{}-{}", attempt_, step);
  const auto unfinished = checkpoint::unfinished_folder(output_, step, tag);
  // A failure of one rank ends the save on all of them, with that rank's message and status.
  auto together = [&](const auto& work) {
    std::optional<Error> failure;
    try {
      work();
    } catch (const Error& error) {
      failure = error;
    }
    const double worst = collective_.largest(failure ? 1 + collective_.rank() : 0);
    if (failure) throw *failure;
    if (worst > 0)
      throw Error("storage_failed", "",
                  fmt::format("rank {} could not save step {}", static_cast<int>(worst) - 1, step), "",
                  checkpoint::kExitStorage);
  };
  event({{"event", "checkpoint_begin"},
         {"step", step},
         {"path", (checkpoint::checkpoints_folder(output_) / checkpoint::step_folder(step)).string()},
         {"seconds", 0},
         {"bytes", 0}});
  together([&] {
    if (first_rank()) checkpoint::begin(files, output_, step, tag);
  });
  together([&] {
    checkpoint::write_rank(files, unfinished, state, collective_.rank(),
                           [&](const checkpoint::FlatUnit& unit, checkpoint::Kind kind) {
                             const auto& units = inputs_.step.units;
                             for (std::size_t i = 0; i < units.size(); ++i)
                               if (state.units[i].name == unit.name) return engine_->slice(i, kind);
                             throw std::logic_error("no unit " + unit.name);
                           });
  });
  checkpoint::Committed committed;
  together([&] {
    if (first_rank())
      committed = checkpoint::commit(files, unfinished, output_, state, inputs_.job.train.save_total_limit);
  });
  last_saved_ = step;
  event({{"event", "checkpoint"},
         {"step", step},
         {"path", committed.path.string()},
         {"seconds", seconds_since(start)},
         {"bytes", committed.bytes}});
}

void Run::evaluate(std::int64_t step) {
  const auto rows = eval_dataset_->rows(), micro = inputs_.plan.micro_batch;
  const data::Batch all{.step = step, .first = 0, .count = rows, .epoch = 0};
  double loss = 0, supervised = 0;
  for (std::int64_t i = 0; i < data::micro_steps(rows, micro, collective_.ranks()); ++i) {
    const auto positions = data::positions_of(all, i, collective_.rank(), micro, collective_.ranks());
    std::vector<data::Row> mine;
    for (const auto position : positions) {
      mine.push_back(eval_dataset_->row(position));
      supervised += static_cast<double>(mine.back().supervised);
    }
    loss += engine_->evaluate(micro_batch_of(mine, positions));
  }
  loss = collective_.sum(loss);
  supervised = collective_.sum(supervised);
  const double mean = supervised > 0 ? loss / supervised : std::nan("");
  event({{"event", "eval"},
         {"step", step},
         {"loss", number_or_null(mean)},
         {"supervised_tokens", static_cast<std::int64_t>(supervised)},
         {"samples", rows}});
  progress_->note(fmt::format("eval at step {}: loss {:.4f} over {} samples", step, mean, rows));
}

int Run::execute() {
  progress_ = std::make_unique<Progress>(first_rank(), 1, 1, 1);
  for (const auto& note : inputs_.notes) progress_->note(note);
  open_data();
  total_ = total_steps();
  check_memory(inputs_, world_.local_ranks());
  host_base_ = device::resident_bytes();
  const bool gpu = inputs_.plan.gpu != "cpu";
  auto kernels =
      gpu ? kernels::make_aten_kernels(engine::kernel_type(inputs_.step.sizes.precision.compute), world_.local_rank())
          : nullptr;
  engine_ = std::make_unique<engine::Engine>(inputs_.step, models::math_of(inputs_.model, inputs_.job.train.dropout),
                                             collective_, static_cast<std::uint64_t>(inputs_.job.train.seed),
                                             std::move(kernels), gpu ? device::Kind::kCuda : device::Kind::kCpu);
  if (first_rank()) write_start();
  start_weights();
  progress_ = std::make_unique<Progress>(first_rank(), done_ + 1, total_, inputs_.job.train.logging_steps);
  if (inputs_.job.train.eval_steps > 0 && !eval_dataset_)
    progress_->note("train.eval_steps has no effect: the job has no data.eval");
  const auto eval_steps = eval_dataset_ ? inputs_.job.train.eval_steps : 0;
  while (done_ < total_) {
    const auto step = at_ = done_ + 1;
    const auto result = one_step(step);
    done_ = step;
    tell(step, result);
    if (eval_steps > 0 && step % eval_steps == 0) evaluate(step);
    if (saves_at(step) || result.stop) save(step);
    if (result.stop && step < total_) {
      const auto path = (checkpoint::checkpoints_folder(output_) / checkpoint::step_folder(step)).string();
      event({{"event", "stop"}, {"step", step}, {"path", path}});
      event({{"event", "end"}, {"reason", "stopped"}, {"exit", kExitStopped}});
      ended_ = true;
      progress_->note(fmt::format("stopped on request after step {}, saved in {}", step, path));
      return kExitStopped;
    }
  }
  if (last_saved_ != done_) save(done_);
  event({{"event", "end"}, {"reason", "completed"}, {"exit", 0}});
  ended_ = true;
  progress_->note(fmt::format("completed {} steps, saved in {}", done_,
                              (checkpoint::checkpoints_folder(output_) / checkpoint::step_folder(done_)).string()));
  return kExitDone;
}

void Run::fail(const std::string& message, int status) noexcept {
  if (ended_) return;
  ended_ = true;
  if (status == comm::kExitRankLost || status == comm::kExitOutOfStep)
    collective_.dump(fs::path(output_) / "dumps", message);
  try {
    event({{"event", "error"}, {"step", at_}, {"message", message}});
    event({{"event", "end"}, {"reason", "failed"}, {"exit", status}});
  } catch (...) {  // the message is on the terminal anyway
  }
}

}  // namespace shardfit::train
