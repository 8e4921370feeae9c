#include "plugin/spank/protocol.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace shardfit::spank {
namespace {

constexpr std::array kOptions = {"partition", "nodes",      "ntasks-per-node", "gpus-per-node", "cpus-per-task",
                                 "mem",       "constraint", "comment",         "time"};

bool known_option(const std::string& name) {
  return std::any_of(kOptions.begin(), kOptions.end(), [&](const char* o) { return name == o; });
}

bool known_variable(const std::string& name) {
  return name.rfind("SHARDFIT_", 0) == 0 && std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return c == '_' || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
         });
}

}  // namespace

bool parse_answer(const std::string& output, Answer& answer, std::string& why) {
  std::size_t at = 0;
  int number = 0;
  bool ended = false;
  while (at < output.size()) {
    const auto newline = output.find('\n', at);
    if (newline == std::string::npos) {
      why = "its answer was cut short";
      return false;
    }
    const std::string line = output.substr(at, newline - at);
    at = newline + 1;
    if (++number == 1) {
      if (line != "shardfit-decide 1") {
        why = "its answer is not of the version this plugin reads (install plugin and shardfit of one version)";
        return false;
      }
      continue;
    }
    const auto space = line.find(' ');
    const std::string verb = line.substr(0, space), rest = space == std::string::npos ? "" : line.substr(space + 1);
    if (ended) {
      why = "its answer goes on after its end";
      return false;
    }
    if (verb == "say") {
      answer.text += rest + "\n";
      continue;
    }
    if (verb == "end" && rest.size() == 1 && rest[0] >= '0' && rest[0] <= '3') {
      answer.status = rest[0] - '0';
      ended = true;
      continue;
    }
    const auto gap = rest.find(' ');
    const std::string name = rest.substr(0, gap), value = gap == std::string::npos ? "" : rest.substr(gap + 1);
    const bool option = (verb == "set" || verb == "default") && known_option(name),
               variable = (verb == "env" || verb == "control") && known_variable(name);
    if ((!option && !variable) || value.empty()) {
      why = "line " + std::to_string(number) + " of its answer is not understood: " + line.substr(0, 80);
      return false;
    }
    (verb == "set"       ? answer.set
     : verb == "default" ? answer.defaults
     : verb == "env"     ? answer.env
                         : answer.control)
        .emplace_back(name, value);
  }
  if (!ended) why = "its answer has no end";
  return ended;
}

}  // namespace shardfit::spank
