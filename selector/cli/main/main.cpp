// shardfit COMMAND [options]: dispatch, and the one place where an error becomes a line and an exit status.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>

#include "regions/base/error.hpp"
#include "regions/base/text.hpp"
#include "selector/cli/commands.hpp"

namespace {

void print_usage(std::FILE* to) {
  std::fprintf(to, "Usage: shardfit COMMAND [options]     (shardfit COMMAND --help tells more)\n\n");
  for (const auto& c : shardfit::cli::commands()) std::fprintf(to, "  %-12s %s\n", c.name, c.summary);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace shardfit;
  const std::vector<std::string> arguments(argv + std::min(argc, 2), argv + argc);
  const std::string name = argc > 1 ? argv[1] : "";
  try {
    if (name.empty() || name == "-h" || name == "--help" || name == "help") {
      print_usage(name.empty() ? stderr : stdout);
      return name.empty() ? kExitBadInput : kExitDone;
    }
    if (name == "--version") {
      std::printf("shardfit %s\n", SHARDFIT_VERSION);
      return kExitDone;
    }
    std::vector<std::string> names;
    for (const auto& c : cli::commands()) {
      if (name == c.name) {
        const int status = c.run(arguments);
        return std::fflush(stdout) == 0 ? status : kExitFailed;
      }
      names.emplace_back(c.name);
    }
    const auto near = nearest(name, names);
    throw Error("unknown_command", "", "unknown command \"" + name + "\"",
                near ? "did you mean \"" + *near + "\"?" : "shardfit --help lists them");
  } catch (const Error& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "shardfit: %s\n", e.what());
    return e.exit_status;
  } catch (const std::exception& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "shardfit: internal error: %s\n", e.what());
    return kExitFailed;
  }
}
