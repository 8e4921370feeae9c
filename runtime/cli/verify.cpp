#include <fmt/format.h>

#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/cli/parse.hpp"

namespace shardfit::runtime_cli {

int verify(const Arguments& arguments) {
  CLI::App app("Reads a checkpoint to its last byte and compares every checksum.", "shardfit-train verify");
  std::string folder;
  bool as_json = false;
  app.add_option("DIR", folder, "a checkpoint, or an output folder (its newest complete one)")->required();
  app.add_flag("--json", as_json, "print one JSON object");
  if (const auto status = parse(app, arguments)) return *status;
  const std::filesystem::path path = checkpoint::resolve(folder);
  const checkpoint::Verified verified = checkpoint::verify(path);
  if (as_json) fmt::print("{}\n", OrderedJson{{"path", path.string()}, {"complete", true}, {"step", verified.step}, {"files", verified.files}, {"bytes", verified.bytes}}.dump());
  else fmt::print("{}: complete, step {}, {} files, {}, every checksum matches\n", path.string(), verified.step, verified.files, format_bytes(static_cast<double>(verified.bytes)));
  return 0;
}

}  // namespace shardfit::runtime_cli
