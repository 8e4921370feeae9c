#include "runtime/cli/parse.hpp"

#include <algorithm>

#include "regions/base/error.hpp"

namespace shardfit::runtime_cli {

std::optional<int> parse(CLI::App& app, const Arguments& arguments) {
  app.set_version_flag("--version", std::string("shardfit-train ") + SHARDFIT_VERSION);
  try {
    auto reversed = arguments;
    std::reverse(reversed.begin(), reversed.end());
    app.parse(reversed);
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    throw Error("usage", app.get_name(), e.what(), "see " + app.get_name() + " --help");
  }
  return std::nullopt;
}

}  // namespace shardfit::runtime_cli
