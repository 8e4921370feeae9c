#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "regions/base/text.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/export.hpp"
#include "runtime/cli/commands.hpp"
#include "runtime/cli/parse.hpp"

namespace shardfit::cli {

int run_verify(const Arguments& arguments) {
  CLI::App app{"Reads every byte of a checkpoint and compares the checksums.", "shardfit-train verify"};
  std::string folder;
  bool json = false;
  app.add_option("DIR", folder, "Checkpoint, or an output folder (its newest complete one)")->required();
  app.add_flag("--json", json, "Print JSON");
  if (const auto status = parse_arguments(app, arguments)) return *status;
  const auto path = checkpoint::resolve(folder);
  const auto verified = checkpoint::verify(path);
  if (json) {
    fmt::print(
        "{}\n",
        nlohmann::ordered_json{
            {"path", path.string()}, {"step", verified.step}, {"files", verified.files}, {"bytes", verified.bytes}}
            .dump());
  } else {
    fmt::print("{}: step {}, {} files, {}: complete and intact\n", path.string(), verified.step, verified.files,
               format_bytes(static_cast<double>(verified.bytes)));
  }
  return kExitDone;
}

int run_export(const Arguments& arguments) {
  CLI::App app{"Writes a checkpoint as a Hugging Face folder.", "shardfit-train export"};
  std::string source, target, format = "huggingface", dtype = "fp32", size = "5GB";
  bool states = false;
  app.add_option("DIR", source, "Checkpoint, or an output folder (its newest complete one)")->required();
  app.add_option("OUT", target, "Folder to write; must not exist")->required();
  app.add_option("--format", format, "huggingface")->default_str(format);
  app.add_option("--dtype", dtype, "fp32 | bf16 | fp16")->default_str(dtype);
  app.add_option("--max-shard-size", size, "Largest file, e.g. 5GB")->default_str(size);
  app.add_flag("--states", states, "Also write states.safetensors: AdamW's states by parameter");
  if (const auto status = parse_arguments(app, arguments)) return *status;
  if (format == "peft" || format == "peft-merged")
    throw Error("not_supported", "--format",
                "\"" + format + "\" is for LoRA runs, which shardfit-train does not do yet", "use huggingface");
  if (format != "huggingface")
    throw Error("unknown_word", "--format", "\"" + format + "\" is not known", "use huggingface");
  checkpoint::ExportOptions options;
  if (dtype == "bf16") options.storage = checkpoint::Storage::kBf16;
  else if (dtype == "fp16") options.storage = checkpoint::Storage::kF16;
  else if (dtype != "fp32")
    throw Error("unknown_word", "--dtype", "\"" + dtype + "\" is not known", "use fp32, bf16 or fp16");
  options.max_shard_bytes = checkpoint::parse_size(size, "--max-shard-size");
  options.states = states;
  const auto exported = checkpoint::export_huggingface(checkpoint::real_files(), source, target, options);
  fmt::print("{}: {} tensors in {} file{}, {}\n", target, exported.tensors, exported.files.size(),
             exported.files.size() == 1 ? "" : "s", format_bytes(static_cast<double>(exported.bytes)));
  return kExitDone;
}

}  // namespace shardfit::cli
