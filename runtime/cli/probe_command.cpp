// --probe: measurements for `shardfit calibrate` and `shardfit profile`, which run this program and read the JSON it
// prints.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "runtime/cli/commands.hpp"
#include "runtime/cli/parse.hpp"
#include "runtime/comm/world.hpp"
#include "runtime/probe/rates.hpp"
#include "runtime/train/connect.hpp"
#include "runtime/train/environment.hpp"
#include "runtime/train/launcher.hpp"

namespace shardfit::cli {

int run_probe(const Arguments& arguments, const std::vector<std::string>& whole_command_line) {
  CLI::App app{"Measures this machine and prints the record as JSON.", "shardfit-train --probe"};
  std::string what, type = "fp32";
  int ranks = 1, threads = 0;
  bool quick = false;
  app.add_option("WHAT", what, "rates")->required();
  app.add_option("--ranks", ranks, "Ranks that compute at once")->check(CLI::Range(1, 1024));
  app.add_option("--threads", threads, "Threads of each rank (default: the processors divided by the ranks)")
      ->check(CLI::Range(0, 4096));
  app.add_option("--type", type, "fp32 | bf16")->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_flag("--quick", quick, "About ten seconds");
  if (const auto status = parse_arguments(app, arguments)) return *status;
  if (what != "rates") throw Error("unknown_word", "--probe", "\"" + what + "\" is not known", "use rates");
  const auto environment = train::read_environment();
  if (ranks > 1 && environment.source != "launcher") return train::launch_ranks(ranks, whole_command_line);
  comm::World world({environment.rank, environment.ranks, environment.address, environment.port, "probe",
                     comm::timeout_from_environment(), environment.listening_socket});
  const auto collective = train::connect(world);
  const int used =
      threads > 0 ? threads : train::threads_for(environment.source == "launcher" ? 1 : world.local_ranks());
  at::set_num_threads(used);
  const auto record =
      probe::measure_rates(*collective, {used, type == "bf16" ? kernels::Type::kBf16 : kernels::Type::kFp32, quick});
  if (!record.empty()) fmt::print("{}\n", record);
  collective->barrier();
  return kExitDone;
}

}  // namespace shardfit::cli
