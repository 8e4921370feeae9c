#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "plugin/handoff/exports.hpp"
#include "plugin/handoff/handoff.hpp"
#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/json.hpp"

namespace shardfit::handoff {

namespace fs = std::filesystem;

namespace {

// True when `folder` holds exactly these files afterwards. It appears at once with all of them, by rename; an existing
// one is compared.
bool publish(const fs::path& folder, const std::vector<std::pair<const char*, std::string>>& contents) {
  std::error_code failed;
  if (!fs::exists(folder, failed)) {
    const fs::path draft =
        folder.parent_path() / (".draft-" + folder.filename().string() + "-" + std::to_string(::getpid()));
    fs::create_directories(draft, failed);
    if (failed) {
      throw Error("file_unwritable", "", draft.parent_path().string() + " cannot be written: " + failed.message(),
                  "submit from a folder you may write to, or have the site set plan_dir", kExitFailed);
    }
    for (const auto& [name, bytes] : contents) {
      std::ofstream file(draft / name, std::ios::binary);
      file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
      if (!file.flush()) {
        fs::remove_all(draft, failed);
        throw Error("file_unwritable", "", (draft / name).string() + " cannot be written", "is the disk full?",
                    kExitFailed);
      }
    }
    fs::rename(draft, folder, failed);
    if (!failed) return true;
    std::error_code ignored;
    fs::remove_all(draft, ignored);  // somebody else was first: compare
  }
  for (const auto& [name, bytes] : contents) {
    std::ifstream file(folder / name, std::ios::binary);
    const std::string there((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (!file || there != bytes) return false;
  }
  return true;
}

}  // namespace

Files write_files(const job::Job& job, const job::Plan& plan, const std::string& decision_json,
                  const std::string& work_dir, const std::string& plan_dir) {
  // The job file lies elsewhere from now on: its paths must not depend on where it is read.
  auto job_object = job::to_json(job);
  const auto absolute = [&](OrderedJson& value) {
    if (value.is_string() && !value.get<std::string>().empty())
      value = fs::absolute(job.resolve(value.get<std::string>())).lexically_normal().string();
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
  if (output.empty() && !job.file.empty())
    output = fs::path(job.file).stem().string();  // the default: a folder named after the job beside its file
  if (!output.empty()) job_object["output"] = fs::absolute(job.resolve(output)).lexically_normal().string();

  // plan.json holds exactly the bytes that its digest is of: `sha256sum plan.json` gives SHARDFIT_PLAN_SHA256.
  const auto plan_text = job::to_json(plan).dump(), job_text = job_object.dump(2) + "\n";
  const std::vector<std::pair<const char*, std::string>> contents = {
      {"plan.json", plan_text},
      {"job.json", job_text},
      {"deepspeed.json", deepspeed_json(job, plan)},
      {"accelerate_fsdp.yaml", accelerate_yaml(job, plan)},
      {"torchtitan.args", torchtitan_args(job, plan)},
      {"torchtitan.toml", torchtitan_toml(job, plan)},
      {"decision.json", decision_json},
  };
  std::string all;
  for (const auto& [name, bytes] : contents) all += bytes + '\0';
  Files files;
  files.plan_sha256 = sha256_hex(plan_text);
  const fs::path root = plan_dir.empty() ? fs::absolute(work_dir) / ".shardfit" : fs::path(plan_dir);
  // The plan names the folder; another job that runs by the same plan has a folder of its own, since a folder never
  // changes.
  fs::path folder = (root / files.plan_sha256).lexically_normal();
  if (!publish(folder, contents)) {
    folder = (root / (files.plan_sha256 + "-" + sha256_hex(all).substr(0, 12))).lexically_normal();
    if (!publish(folder, contents)) {
      throw Error("file_changed", "", folder.string() + " exists with other contents",
                  "remove it: nothing but shardfit should write there", kExitFailed);
    }
  }
  files.folder = folder.string();
  const auto path = [&](const char* file) { return (folder / file).string(); };
  files.environment = {{"SHARDFIT_PLAN", path("plan.json")},
                       {"SHARDFIT_JOB", path("job.json")},
                       {"SHARDFIT_DEEPSPEED_CONFIG", path("deepspeed.json")},
                       {"SHARDFIT_FSDP_CONFIG", path("accelerate_fsdp.yaml")},
                       {"SHARDFIT_TORCHTITAN_ARGS", path("torchtitan.args")},
                       {"SHARDFIT_DECISION", path("decision.json")},
                       {"SHARDFIT_PLAN_SHA256", files.plan_sha256}};
  return files;
}

}  // namespace shardfit::handoff
