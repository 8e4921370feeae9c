// shardfit-train: dispatch, and the one place where an error before the run becomes a line and an exit status.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "regions/base/error.hpp"
#include "runtime/cli/commands.hpp"
#include "runtime/device/meter.hpp"

int main(int argc, char** argv) {
  using namespace shardfit;
  const std::vector<std::string> all(argv, argv + argc);
  const std::string first = argc > 1 ? argv[1] : "";
  const std::vector<std::string> rest(argv + (argc > 2 ? 2 : argc), argv + argc);
  try {
    device::install_counting_allocator();
    int status;
    if (first == "verify") status = cli::run_verify(rest);
    else if (first == "export") status = cli::run_export(rest);
    else if (first == "eval") status = cli::run_eval(rest);
    else if (first == "logits") status = cli::run_logits(rest);
    else if (first == "--probe") status = cli::run_probe(rest, all);
    else status = cli::run_train({argv + 1, argv + argc}, all);
    return std::fflush(stdout) == 0 ? status : kExitFailed;
  } catch (const Error& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "shardfit-train: %s\n", error.what());
    return error.exit_status;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "shardfit-train: internal error: %s\n", error.what());
    return kExitFailed;
  }
}
