// eval and logits: a model from a checkpoint or a Hugging Face folder over rows of a JSON-lines file, on this machine's
// processors.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "regions/base/json.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/cli/commands.hpp"
#include "runtime/cli/parse.hpp"
#include "runtime/data/dataset.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/train/environment.hpp"
#include "runtime/train/run.hpp"

namespace shardfit::cli {
namespace {

namespace fs = std::filesystem;

// A folder that is removed when the command ends.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    auto pattern = (fs::temp_directory_path() / "shardfit-XXXXXX").string();
    if (!::mkdtemp(pattern.data()))
      throw Error("storage_failed", "", fmt::format("cannot make a temporary folder: {}", std::strerror(errno)), "",
                  kExitFailed);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// The model and the rows, ready to compute one row at a time in fp32.
class Loaded {
 public:
  Loaded(const std::string& folder, const std::string& file, bool packing, std::int64_t sequence,
         const std::string& format) {
    const bool huggingface = fs::exists(fs::path(folder) / "config.json");
    if (!huggingface)
      checkpoint_ = std::make_unique<checkpoint::Checkpoint>(checkpoint::Checkpoint::open(checkpoint::resolve(folder)));
    const auto model_folder = huggingface ? fs::path(folder) : checkpoint_->model_folder();
    model_ = model::load_model(model_folder.string());
    data::Source source;
    source.files = {file};
    source.format = format;
    source.packing = packing;
    source.vocabulary = model_.vocabulary;
    source.cache_folder = cache_.path();
    if (fs::exists(model_folder / "tokenizer.json") && format != "tokens")
      tokenizer_ = std::make_unique<tokenizer::Tokenizer>(tokenizer::Tokenizer::load(model_folder));
    source.tokenizer = tokenizer_.get();
    source.end_of_text = tokenizer::end_of_text(model_folder, tokenizer_.get());
    if (sequence == 0 && checkpoint_)
      sequence = nlohmann::json::parse(checkpoint_->job_json()).value("sequence_length", std::int64_t{0});
    if (sequence == 0) {  // as long as the longest row needs
      source.sequence_length = std::max<std::int64_t>(model_.max_positions, 1);
      source.packing = false;
      const auto rows = data::Dataset::open(source);
      for (std::int64_t i = 0; i < rows.rows(); ++i) sequence = std::max(sequence, rows.row(i).length);
      source.packing = packing;
    }
    source.sequence_length = std::max<std::int64_t>(sequence, 1);
    dataset_ = std::make_unique<data::Dataset>(data::Dataset::open(source));
    job::Job job;
    job.sequence_length = source.sequence_length;
    job.precision.name = "fp32";
    job::Plan plan;
    plan.gpu = "cpu";
    at::set_num_threads(train::threads_for(1));
    engine_ = std::make_unique<engine::Engine>(schedule::build_step(model_, job, plan), models::math_of(model_, 0.0),
                                               *collective_, 0);
    if (huggingface) engine_->load(checkpoint::HuggingFaceWeights(model_folder));
    else engine_->restore(*checkpoint_, false);
  }

  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
  model::Model model_;
  TemporaryFolder cache_;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  std::unique_ptr<data::Dataset> dataset_;
  std::unique_ptr<comm::Collective> collective_ = comm::make_single();
  std::unique_ptr<engine::Engine> engine_;
};

}  // namespace

int run_eval(const Arguments& arguments) {
  CLI::App app{"Mean loss over the supervised tokens of a file, in fp32.", "shardfit-train eval"};
  std::string folder, file, format = "jsonl";
  bool json = false, packing = false;
  std::int64_t sequence = 0;
  app.add_option("DIR", folder, "Checkpoint, output folder or Hugging Face folder")->required();
  app.add_option("FILE", file, "Rows to evaluate")->required();
  app.add_option("--format", format, "jsonl | text | tokens")->default_str(format);
  app.add_option("--sequence-length", sequence, "Tokens of a row (default: the checkpoint's, else the longest row)");
  app.add_flag("--packing", packing, "Pack documents into rows as training does");
  app.add_flag("--json", json, "Print JSON");
  if (const auto status = parse_arguments(app, arguments)) return *status;
  Loaded loaded(folder, file, packing, sequence, format);
  double loss = 0;
  std::int64_t supervised = 0;
  for (std::int64_t i = 0; i < loaded.dataset_->rows(); ++i) {
    const std::vector<data::Row> rows{loaded.dataset_->row(i)};
    supervised += rows[0].supervised;
    if (rows[0].supervised > 0) loss += loaded.engine_->evaluate(train::micro_batch_of(rows, {i}));
  }
  const double mean = supervised > 0 ? loss / static_cast<double>(supervised) : std::nan("");
  if (json)
    fmt::print("{}\n",
               nlohmann::ordered_json{{"loss", train::number_or_null(mean)}, {"supervised_tokens", supervised}}.dump());
  else fmt::print("loss {:.6f} over {} supervised tokens in {} rows\n", mean, supervised, loaded.dataset_->rows());
  return kExitDone;
}

int run_logits(const Arguments& arguments) {
  CLI::App app{"Writes fp32 logits of every row of a file: tensors \"0\", \"1\", ... of [tokens, vocabulary].",
               "shardfit-train logits"};
  std::string folder, file, out, format = "jsonl";
  std::int64_t sequence = 0;
  app.add_option("DIR", folder, "Checkpoint, output folder or Hugging Face folder")->required();
  app.add_option("FILE", file, "Rows")->required();
  app.add_option("OUT", out, "safetensors file to write")->required();
  app.add_option("--format", format, "jsonl | text | tokens")->default_str(format);
  app.add_option("--sequence-length", sequence, "Tokens of a row (default: the checkpoint's, else the longest row)");
  if (const auto status = parse_arguments(app, arguments)) return *status;
  Loaded loaded(folder, file, false, sequence, format);
  const auto vocabulary = loaded.model_.vocabulary;
  std::vector<checkpoint::TensorToWrite> tensors;
  std::vector<float> values;  // of the row being written
  std::int64_t computed = -1;
  for (std::int64_t i = 0; i < loaded.dataset_->rows(); ++i) {
    const auto length = loaded.dataset_->row(i).length;
    auto fill = [&, i, length](std::int64_t first_byte, std::span<std::byte> bytes) {
      if (computed != i) {  // rows are written one after another: one is held at a time
        computed = i;
        values.assign(static_cast<std::size_t>(length * vocabulary), 0);
        const std::vector<data::Row> rows{loaded.dataset_->row(i)};
        loaded.engine_->logits(train::micro_batch_of(rows, {i}),
                               [&](std::int64_t, std::int64_t first, std::int64_t tokens, const float* logits) {
                                 const auto n = std::min(tokens, length - first);
                                 if (n > 0) std::copy_n(logits, n * vocabulary, values.begin() + first * vocabulary);
                               });
      }
      std::memcpy(bytes.data(), reinterpret_cast<const std::byte*>(values.data()) + first_byte, bytes.size());
    };
    tensors.push_back({std::to_string(i), checkpoint::Storage::kF32, {length, vocabulary}, fill});
  }
  const auto written = checkpoint::write_safetensors(checkpoint::real_files(), out, tensors);
  fmt::print("{}: {} rows, {} bytes\n", out, tensors.size(), written.bytes);
  return kExitDone;
}

}  // namespace shardfit::cli
