// Runs a command's CLI11 parser the way every command does: --help and --version answer and stop, usage errors exit 2.
#pragma once
#include <CLI/CLI.hpp>
#include <optional>

#include "selector/cli/commands.hpp"

namespace shardfit::cli {

// nullopt = go on; otherwise the exit status (0 after --help or --version).
std::optional<int> parse(CLI::App& app, const Arguments& arguments);

}  // namespace shardfit::cli
