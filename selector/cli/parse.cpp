#include "selector/cli/parse.hpp"

#include <iostream>

#include "regions/base/error.hpp"

namespace shardfit::cli {

namespace {

// Of the command and of each of its subcommands.
void add_version(CLI::App& app) {
  app.set_version_flag("--version", std::string("shardfit ") + SHARDFIT_VERSION);
  for (auto* subcommand : app.get_subcommands([](const CLI::App*) { return true; })) add_version(*subcommand);
}

}  // namespace

std::optional<int> parse(CLI::App& app, const Arguments& arguments) {
  add_version(app);
  const std::string name = app.get_name();
  app.name("shardfit " + name);  // as help shows it
  app.option_defaults()->always_capture_default(false);
  try {
    auto reversed = arguments;
    std::reverse(reversed.begin(), reversed.end());
    app.parse(reversed);
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    throw Error("usage", name, e.what(), "see shardfit " + name + " --help");
  }
  return std::nullopt;
}

}  // namespace shardfit::cli
