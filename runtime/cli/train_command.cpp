#include <cstdlib>

#include "runtime/cli/commands.hpp"
#include "runtime/cli/parse.hpp"
#include "runtime/train/environment.hpp"
#include "runtime/train/launcher.hpp"
#include "runtime/train/trainer.hpp"

namespace shardfit::cli {

int run_train(const Arguments& arguments, const std::vector<std::string>& whole_command_line) {
  CLI::App app{
      "Trains the model that JOB.json describes, the way a plan says. Other commands: verify, export, eval, logits.",
      "shardfit-train"};
  train::Options options;
  int ranks = 0;  // 0 = not stated
  app.add_option("JOB", options.job, "Job file (default: SHARDFIT_JOB)");
  app.add_option("--plan", options.plan, "Plan file (default: SHARDFIT_PLAN, else planned for this machine)");
  app.add_option("--output", options.output, "Output folder (default: the job's)");
  app.add_option("--resume", options.resume, "auto | never | a checkpoint or output folder")->default_str("auto");
  app.add_option("--set", options.set, "KEY=VALUE overrides one key of the job, plan.KEY=VALUE one of the plan")
      ->take_all();
  app.add_option("--ranks", ranks, "Start this many ranks on this machine")->check(CLI::Range(1, 1024));
  if (const auto status = parse_arguments(app, arguments)) return *status;
  if (options.job.empty())
    if (const char* variable = std::getenv("SHARDFIT_JOB")) options.job = variable;
  if (options.job.empty()) throw Error("usage", "", "JOB.json is missing", "see shardfit-train --help");
  const auto environment = train::read_environment();
  // One task of srun, or none: the launcher may start the ranks. A rank that the launcher started sees --ranks again
  // and passes over it.
  if (ranks != 0 && environment.source != "launcher") {
    if (environment.given && environment.ranks > 1) {
      if (environment.ranks != ranks)
        throw Error("ranks_mismatch", "--ranks",
                    std::to_string(ranks) + ", but " + environment.source + " started " +
                        std::to_string(environment.ranks) + " ranks",
                    "leave out --ranks");
    } else if (ranks > 1) {
      return train::launch_ranks(ranks, whole_command_line);
    }
  }
  return train::train(options, environment);
}

}  // namespace shardfit::cli
