#include <fmt/format.h>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "runtime/checkpoint/export.hpp"
#include "runtime/cli/parse.hpp"

namespace shardfit::runtime_cli {
namespace {

checkpoint::Storage storage_of(const std::string& dtype) {
  if (dtype == "fp32") return checkpoint::Storage::kF32;
  if (dtype == "bf16") return checkpoint::Storage::kBf16;
  if (dtype == "fp16") return checkpoint::Storage::kF16;
  throw Error("unknown_word", "--dtype", "is \"" + dtype + "\"", "take fp32, bf16 or fp16");
}

void check_format(const std::string& format) {
  if (format == "huggingface") return;
  if (format == "peft" || format == "peft-merged")
    throw Error("not_supported", "--format", "\"" + format + "\" is for adapters, which this version does not train", "take huggingface");
  throw Error("unknown_word", "--format", "is \"" + format + "\"", "take huggingface");
}

}  // namespace

int export_weights(const Arguments& arguments) {
  CLI::App app("Writes a checkpoint as a Hugging Face model folder.", "shardfit-train export");
  std::string source, target, format = "huggingface", dtype = "fp32", shard = "5GB";
  bool states = false, as_json = false;
  app.add_option("DIR", source, "a checkpoint, or an output folder (its newest complete one)")->required();
  app.add_option("OUT", target, "the folder to write; it must not exist")->required();
  app.add_option("--format", format, "huggingface (default)");
  app.add_option("--dtype", dtype, "fp32 (default: the trained values, unrounded), bf16 or fp16");
  app.add_option("--max-shard-size", shard, "largest file of weights, like 5GB (default), 500MB, 2GiB");
  app.add_flag("--states", states, "also states.safetensors, the optimizer's states by name");
  app.add_flag("--json", as_json, "print one JSON object");
  if (const auto status = parse(app, arguments)) return *status;
  check_format(format);
  const checkpoint::ExportOptions options{storage_of(dtype), checkpoint::parse_size(shard, "--max-shard-size"), states};
  const checkpoint::Exported exported = checkpoint::export_huggingface(checkpoint::real_files(), source, target, options);
  if (as_json) fmt::print("{}\n", OrderedJson{{"path", target}, {"tensors", exported.tensors}, {"bytes", exported.bytes}, {"files", exported.files}}.dump());
  else fmt::print("{}: {} tensors as {}, {} in {} files\n", target, exported.tensors, dtype, format_bytes(static_cast<double>(exported.bytes)), exported.files.size());
  return 0;
}

}  // namespace shardfit::runtime_cli
