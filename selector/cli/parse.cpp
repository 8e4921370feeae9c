#include "selector/cli/parse.hpp"

#include <iostream>

#include "regions/base/error.hpp"

namespace shardfit::cli {

std::optional<int> parse(CLI::App& app, const Arguments& arguments) {
  app.set_version_flag("--version", std::string("shardfit ") + SHARDFIT_VERSION);
  app.option_defaults()->always_capture_default(false);
  try {
    auto reversed = arguments;
    std::reverse(reversed.begin(), reversed.end());
    app.parse(reversed);
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    throw Error("usage", app.get_name(), e.what(), "see shardfit " + app.get_name() + " --help");
  }
  return std::nullopt;
}

}  // namespace shardfit::cli
