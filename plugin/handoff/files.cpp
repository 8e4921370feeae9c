#include <filesystem>

#include "plugin/handoff/exports.hpp"
#include "plugin/handoff/handoff.hpp"
#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/json.hpp"

namespace shardfit::handoff {

namespace fs = std::filesystem;

Files write_files(const job::Job& job, const job::Plan& plan, const std::string& decision_json, const std::string& work_dir, const std::string& plan_dir) {
  // The job file lies elsewhere from now on: its paths must not depend on where it is read.
  auto job_object = job::to_json(job);
  const auto absolute = [&](OrderedJson& value) {
    if (value.is_string() && !value.get<std::string>().empty()) value = fs::absolute(job.resolve(value.get<std::string>())).lexically_normal().string();
  };
  if (job_object.contains("model")) absolute(job_object["model"]);
  if (job_object.contains("data") && job_object["data"].is_object()) {
    for (const char* key : {"train", "eval"}) {
      if (!job_object["data"].contains(key)) continue;
      auto& paths = job_object["data"][key];
      if (paths.is_array()) {
        for (auto& p : paths) absolute(p);
      } else {
        absolute(paths);
      }
    }
  }
  std::string output = job.output;
  if (output.empty() && !job.file.empty()) output = fs::path(job.file).stem().string();  // the default: a folder named after the job beside its file
  if (!output.empty()) job_object["output"] = fs::absolute(job.resolve(output)).lexically_normal().string();

  const auto plan_text = job::to_json(plan).dump(2) + "\n", job_text = job_object.dump(2) + "\n";
  const auto name = sha256_hex(plan_text + '\0' + job_text + '\0' + decision_json);
  Files files;
  const fs::path root = plan_dir.empty() ? fs::absolute(work_dir) / ".shardfit" : fs::path(plan_dir);
  const fs::path folder = (root / name).lexically_normal();
  files.folder = folder.string();
  files.plan_sha256 = job::plan_sha256(plan);
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) {
    throw Error("file_unwritable", "", folder.string() + " cannot be made: " + failed.message(), plan_dir.empty() ? "submit from a folder you may write to, or have the site set plan_dir" : "ask the administrator about plan_dir", kExitFailed);
  }
  const auto write = [&](const char* file, const std::string& bytes) { write_file_atomic(folder / file, bytes); };
  if (!fs::exists(folder / "decision.json")) {  // written last: a folder that has it is whole
    write("plan.json", plan_text);
    write("job.json", job_text);
    write("deepspeed.json", deepspeed_json(job, plan));
    write("accelerate_fsdp.yaml", accelerate_yaml(job, plan));
    write("torchtitan.args", torchtitan_args(job, plan));
    write("torchtitan.toml", torchtitan_toml(job, plan));
    write("decision.json", decision_json);
  }
  const auto path = [&](const char* file) { return (folder / file).string(); };
  files.environment = {{"SHARDFIT_PLAN", path("plan.json")}, {"SHARDFIT_JOB", path("job.json")}, {"SHARDFIT_DEEPSPEED_CONFIG", path("deepspeed.json")},
                       {"SHARDFIT_FSDP_CONFIG", path("accelerate_fsdp.yaml")}, {"SHARDFIT_TORCHTITAN_ARGS", path("torchtitan.args")},
                       {"SHARDFIT_DECISION", path("decision.json")}, {"SHARDFIT_PLAN_SHA256", files.plan_sha256}};
  return files;
}

}  // namespace shardfit::handoff
