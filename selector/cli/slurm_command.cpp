// shardfit slurm-decide: what the Slurm plugin runs before a submission. Its answer is lines, not JSON
// (plugin/spank/protocol.hpp).
#include <cstdio>

#include "regions/base/error.hpp"
#include "regions/base/text.hpp"
#include "selector/cli/parse.hpp"
#include "selector/cli/slurm_decision.hpp"

namespace shardfit::cli {
namespace {

void add_line(std::string& out, const char* verb, const std::string& name, const std::string& value) {
  if (value.find('\n') != std::string::npos)
    throw Error("bad_path", "", "\"" + value.substr(0, value.find('\n')) + "...\" contains a line break",
                "use a folder whose name has none");
  out += std::string(verb) + " " + name + " " + value + "\n";
}

}  // namespace

int slurm_decide_command(const Arguments& arguments) {
  CLI::App app{"Decide for a submission (run by the Slurm plugin)", "slurm-decide"};
  SlurmRequest request;
  std::string mode = "auto", command, pin, gpus;
  app.add_option("--mode", mode, "auto or show")->check(CLI::IsMember({"auto", "show"}));
  app.add_option("--command", command, "sbatch, salloc or srun");
  app.add_option("--job", request.job_file, "job file")->required();
  app.add_option("--pin", pin, "pins, joined by ;");
  app.add_option("--deadline", request.deadline, "latest end from now");
  app.add_option("--max-cost", request.max_cost, "most it may cost");
  app.add_option("--gpu", gpus, "GPUs, joined by commas");
  app.add_option("--max-nodes", request.max_nodes, "most nodes")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20));
  app.add_option("--account", request.account, "account of the submission");
  app.add_option("--qos", request.qos, "QOS of the submission");
  app.add_option("--reservation", request.reservation, "reservation of the submission");
  app.add_option("--time", request.user_time, "the user's own time limit");
  app.add_option("--chdir", request.work_dir, "the job's working folder");
  if (const auto done = parse(app, arguments)) return *done;
  for (const auto& p : split(pin, ';')) {
    if (!trim(p).empty()) request.pins.push_back(trim(p));
  }
  for (const auto& g : split(gpus, ',')) {
    if (!trim(g).empty()) request.gpus.push_back(trim(g));
  }
  request.write = mode == "auto";
  const auto answer = decide_for_slurm(request);

  std::string out = "shardfit-decide 1\n";
  for (const auto& line : split(answer.text, '\n')) out += "say " + line + "\n";
  if (answer.chosen && request.write) {
    for (const auto& [name, value] : answer.options.set) add_line(out, "set", name, value);
    for (const auto& [name, value] : answer.options.defaults) add_line(out, "default", name, value);
    for (const auto& [name, value] : answer.environment) add_line(out, "env", name, value);
    for (const auto& [name, value] : answer.control) add_line(out, "control", name, value);
  }
  out += "end " + std::to_string(answer.chosen ? kExitDone : kExitNothingFits) + "\n";
  std::fwrite(out.data(), 1, out.size(), stdout);
  return kExitDone;
}

}  // namespace shardfit::cli
