// shardfit submit JOB.json SCRIPT [sbatch options]: decide and submit without the Slurm plugin.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/text.hpp"
#include "selector/cli/parse.hpp"
#include "selector/cli/slurm_decision.hpp"

namespace shardfit::cli {
namespace {

// Options of sbatch that the decision sets, or that conflict with it; short forms beside.
struct SbatchOption {
  const char* name;
  char letter;
};
// clang-format off
constexpr SbatchOption kDecided[] = {{"partition", 'p'}, {"nodes", 'N'}, {"ntasks", 'n'}, {"ntasks-per-node", 0}, {"ntasks-per-gpu", 0}, {"ntasks-per-socket", 0},
                                 {"ntasks-per-core", 0}, {"cpus-per-task", 'c'}, {"cpus-per-gpu", 0}, {"gpus", 'G'}, {"gpus-per-node", 0}, {"gpus-per-task", 0}, {"gpus-per-socket", 0},
                                 {"gres", 0}, {"tres-per-task", 0}, {"mem", 0}, {"mem-per-cpu", 0}, {"mem-per-gpu", 0}, {"mincpus", 0}, {"constraint", 'C'}, {"prefer", 0}, {"nodelist", 'w'},
                                 {"nodefile", 'F'}, {"extra-node-info", 'B'}, {"sockets-per-node", 0}, {"cores-per-socket", 0}, {"threads-per-core", 0}};
// clang-format on

// Name of the option that a word of a command line is, "" for none; its value where it is in the same word.
std::string option_name(const std::string& word, std::string& value, bool& has_value) {
  value.clear();
  has_value = false;
  if (word.rfind("--", 0) == 0) {
    const auto equals = word.find('=');
    has_value = equals != std::string::npos;
    if (has_value) value = word.substr(equals + 1);
    return word.substr(2, has_value ? equals - 2 : std::string::npos);
  }
  if (word.size() >= 2 && word[0] == '-') {
    if (word.size() > 2) has_value = true, value = word.substr(2);
    for (const auto& o : kDecided) {
      if (o.letter == word[1]) return o.name;
    }
    switch (word[1]) {
      case 'A': return "account";
      case 'q': return "qos";
      case 't': return "time";
      case 'D': return "chdir";
      case 'J': return "job-name";
      default: return std::string(1, word[1]);
    }
  }
  return "";
}

bool decided(const std::string& name) {
  return name == "hw" || name.rfind("hw-", 0) == 0 ||
         std::any_of(std::begin(kDecided), std::end(kDecided), [&](const auto& o) { return name == o.name; });
}

struct Given {  // what the user's options and the script's #SBATCH lines say
  std::string account, qos, reservation, time, chdir, job_name, export_variables, comment;
};

void note(Given& given, const std::string& name, const std::string& value) {
  if (name == "account") given.account = value;
  if (name == "qos") given.qos = value;
  if (name == "reservation") given.reservation = value;
  if (name == "time") given.time = value;
  if (name == "chdir") given.chdir = value;
  if (name == "job-name") given.job_name = value;
  if (name == "export") given.export_variables = value;
  if (name == "comment") given.comment = value;
}

void read_words(const std::vector<std::string>& words, Given& given, bool& decides) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::string value;
    bool has_value = false;
    const auto name = option_name(words[i], value, has_value);
    if (name.empty()) continue;
    if (!has_value && i + 1 < words.size() && words[i + 1].rfind('-', 0) != 0) value = words[i + 1];
    decides = decides || decided(name);
    note(given, name, value);
  }
}

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> out;
  for (const auto& w : split(line, ' ')) {
    auto word = trim(w);
    if (!word.empty()) out.push_back(std::move(word));
  }
  return out;
}

// The script without the #SBATCH lines that the decision replaces: no option of sbatch's command line takes one back.
std::string without_decided_lines(const std::string& script, Given& given, std::vector<std::string>& dropped) {
  std::string out;
  bool directives = true;
  for (std::size_t at = 0; at < script.size();) {
    const auto end = std::min(script.find('\n', at), script.size());
    const std::string line = script.substr(at, end - at);
    at = end + 1;
    bool drop = false;
    if (directives && line.rfind("#SBATCH", 0) == 0) {
      auto text = line.substr(7);
      if (const auto comment = text.find(" #"); comment != std::string::npos) text.resize(comment);
      read_words(words_of(text), given, drop);
      if (drop) dropped.push_back(trim(line));
    } else if (!trim(line).empty() && line[0] != '#') {
      directives = false;  // Slurm stops reading directives at the first command
    }
    out += (drop ? "#" + line : line) + "\n";
  }
  return out;
}

// The script as sbatch's standard input, in an unlinked file.
void become_standard_input(const std::string& script) {
  char name[] = "/tmp/shardfit-submit.XXXXXX";
  const int fd = ::mkstemp(name);
  if (fd < 0)
    throw Error("file_unwritable", "", std::string("no temporary file in /tmp: ") + std::strerror(errno),
                "is the disk full?", kExitFailed);
  ::unlink(name);
  std::size_t at = 0;
  while (at < script.size()) {
    const auto n = ::write(fd, script.data() + at, script.size() - at);
    if (n <= 0)
      throw Error("file_unwritable", "", std::string("the script could not be copied to /tmp: ") + std::strerror(errno),
                  "is the disk full?", kExitFailed);
    at += static_cast<std::size_t>(n);
  }
  if (::lseek(fd, 0, SEEK_SET) != 0 || ::dup2(fd, 0) != 0)
    throw Error("file_unwritable", "", "the script could not be handed to sbatch", "", kExitFailed);
}

}  // namespace

int submit_command(const Arguments& arguments) {
  CLI::App app{"Decide where a job runs and submit it by sbatch, without the Slurm plugin", "submit"};
  SlurmRequest request;
  request.option_prefix = "--";
  std::string script;
  std::vector<std::string> rest, pins, gpus;
  bool dry = false;
  app.add_option("--pin", pins, "pin that the choice must satisfy; may be repeated")->take_all()->expected(1);
  app.add_option("--deadline", request.deadline, "latest end from now, e.g. 12h");
  app.add_option("--max-cost", request.max_cost, "most the run may cost, e.g. 500EUR");
  app.add_option("--gpu", gpus, "only these GPUs; may be repeated or joined by commas")->delimiter(',');
  app.add_option("--max-nodes", request.max_nodes, "at most so many nodes")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20));
  app.add_flag("--show", dry, "print the decision and sbatch's command line; submit nothing");
  app.add_option("JOB", request.job_file, "job file (JSON)")->required();
  app.add_option("SCRIPT", script, "batch script")->required();
  app.add_option("OPTIONS", rest, "options of sbatch; after -- the script's own arguments");
  app.prefix_command();
  // CLI11 would take sbatch's options for its own: hand it only what stands before the end of SCRIPT.
  Arguments own, later;
  int positional = 0;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (positional == 2) {
      later.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
      break;
    }
    own.push_back(arguments[i]);
    const auto& a = arguments[i];
    if (a.rfind("--", 0) == 0) {
      const bool flag = a == "--show" || a == "--help" || a == "--version";
      if (!flag && a.find('=') == std::string::npos && i + 1 < arguments.size()) own.push_back(arguments[++i]);
    } else if (a != "-h") {
      ++positional;
    }
  }
  if (const auto done = parse(app, own)) return *done;
  const auto dashes = std::find(later.begin(), later.end(), "--");
  const std::vector<std::string> options(later.begin(), dashes);
  const std::vector<std::string> script_arguments(dashes == later.end() ? dashes : dashes + 1, later.end());

  Given given;
  std::vector<std::string> dropped;
  const auto text = without_decided_lines(read_file(script, std::size_t{4} << 20), given, dropped);
  if (text.rfind("#!", 0) != 0)
    throw Error("bad_script", "line 1", "a batch script begins with #!", "write #!/bin/bash as its first line")
        .in_file(script);
  for (const auto& word : options) {
    std::string value;
    bool has_value = false;
    const auto name = option_name(word, value, has_value);
    if (decided(name)) throw Error("usage", word, "the decision sets --" + name, "leave it out, or submit by sbatch");
  }
  bool ignored = false;
  const auto from_environment = [](const char* name) {
    const char* v = std::getenv(name);
    return std::string(v ? v : "");
  };
  if (given.account.empty()) given.account = from_environment("SBATCH_ACCOUNT");
  if (given.qos.empty()) given.qos = from_environment("SBATCH_QOS");
  if (given.time.empty()) given.time = from_environment("SBATCH_TIMELIMIT");
  read_words(options, given, ignored);
  request.pins = pins;
  request.gpus = gpus;
  request.account = given.account;
  request.qos = given.qos;
  request.reservation = given.reservation;
  request.user_time = given.time;
  request.work_dir = given.chdir;
  request.write = !dry;
  const auto answer = decide_for_slurm(request);
  fmt::print(dry ? stdout : stderr, "{}", answer.text);
  if (!answer.chosen) return kExitNothingFits;
  for (const auto& d : dropped) fmt::print(stderr, "shardfit: the decision replaces {}\n", d);

  std::vector<std::string> command = {"sbatch"};
  command.insert(command.end(), options.begin(), options.end());
  for (const auto& [name, value] : answer.options.set) command.push_back("--" + name + "=" + value);
  for (const auto& [name, value] : answer.options.defaults) {
    const auto& users_own = name == "time" ? given.time : given.comment;
    if (users_own.empty()) command.push_back("--" + name + "=" + value);
  }
  if (given.job_name.empty()) command.push_back("--job-name=" + std::filesystem::path(script).filename().string());
  const auto exported = to_lower(given.export_variables);
  if (!exported.empty() && exported.rfind("all", 0) != 0) {
    std::vector<std::string> names;
    for (const auto& [name, value] : answer.environment) names.push_back(name);
    command.push_back("--export=" + (exported == "none" || exported == "nil" ? "" : given.export_variables + ",") +
                      join(names, ",") + (answer.control.empty() ? "" : ",SHARDFIT_PINS"));
  }
  if (dry) {
    std::string line;
    for (const auto& word : command)
      line += (line.empty() ? "" : " ") +
              (word.find_first_of(" '\"|&;()<>*?$") == std::string::npos ? word : "'" + word + "'");
    fmt::print("{} < {}\n", line, script);
    return kExitDone;
  }
  if (!script_arguments.empty()) {
    command.push_back("/dev/stdin");
    command.insert(command.end(), script_arguments.begin(), script_arguments.end());
  }
  for (const auto* pairs : {&answer.environment, &answer.control}) {
    for (const auto& [name, value] : *pairs) ::setenv(name.c_str(), value.c_str(), 1);
  }
  for (const char* name : {"SBATCH_HW", "SBATCH_HW_JOB", "SBATCH_HW_PIN", "SBATCH_HW_DEADLINE", "SBATCH_HW_MAX_COST",
                           "SBATCH_HW_GPU", "SBATCH_HW_MAX_NODES"})
    ::unsetenv(name);
  become_standard_input(text);
  std::fflush(nullptr);
  std::vector<char*> argv;
  for (auto& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execvp("sbatch", argv.data());
  throw Error("slurm_missing", "", std::string("sbatch could not be run: ") + std::strerror(errno),
              "is Slurm installed?", kExitFailed);
}

}  // namespace shardfit::cli
