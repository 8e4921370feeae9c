// CLI11 the way every command uses it: --help and --version answer and stop, usage errors are Error{usage}, exit
// status 2.
#pragma once
#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "regions/base/error.hpp"

namespace shardfit::cli {

// nullopt = go on; otherwise the exit status.
inline std::optional<int> parse_arguments(CLI::App& app, const std::vector<std::string>& arguments) {
  app.set_version_flag("--version", std::string("shardfit-train ") + SHARDFIT_VERSION);
  try {
    auto reversed = arguments;
    std::reverse(reversed.begin(), reversed.end());
    app.parse(reversed);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    throw Error("usage", "", error.what(), "see " + app.get_name() + " --help");
  }
  return std::nullopt;
}

}  // namespace shardfit::cli
