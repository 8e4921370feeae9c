// shardfit doctor: is shardfit installed in this Slurm so that it works?
#include <fmt/format.h>

#include "plugin/doctor/checks.hpp"
#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "selector/cli/parse.hpp"

namespace shardfit::cli {

int doctor_command(const Arguments& arguments) {
  CLI::App app{"Check the installation in Slurm: plugin, cli_filter, job_submit, jobcomp, policy tables, site file",
               "doctor"};
  bool json = false;
  app.add_flag("--json", json, "as JSON");
  if (const auto done = parse(app, arguments)) return *done;
  const auto findings = doctor::examine();
  bool bad = false;
  OrderedJson list = OrderedJson::array();
  for (const auto& f : findings) {
    bad = bad || f.level == doctor::Level::kBad;
    const char* level = f.level == doctor::Level::kGood      ? "ok"
                        : f.level == doctor::Level::kWarning ? "warning"
                                                             : "error";
    if (json) {
      list.push_back({{"check", f.check}, {"level", level}, {"message", f.message}, {"remedy", f.remedy}});
    } else {
      fmt::print("{:<8} {:<11} {}{}\n", level, f.check, f.message, f.remedy.empty() ? "" : "; " + f.remedy);
    }
  }
  if (json) fmt::print("{}\n", list.dump(2));
  return bad ? kExitFailed : kExitDone;
}

}  // namespace shardfit::cli
