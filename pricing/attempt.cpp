#include "pricing/attempt.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "regions/base/time.hpp"

namespace shardfit::pricing {
namespace {

// enum job_states of Slurm: the low byte is the state, a flag above it tells a requeue.
std::string state_name(std::int64_t state) {
  static const char* const names[] = {"PENDING", "RUNNING",   "SUSPENDED", "COMPLETED", "CANCELLED", "FAILED",
                                      "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE",  "OUT_OF_MEMORY"};
  const std::int64_t base = state & 0xff;
  if ((state & 0x400) && base <= 1) return "REQUEUED";
  return base < 12 ? names[base] : "STATE_" + std::to_string(base);
}

bool nothing(const std::string& text) {
  return text.empty() || text == "(null)" || text == "None assigned" || text == "Unknown" || text == "N/A";
}

// job_submit's record: "shardfit1;pins=A&B;plan=SHA", maybe between other people's text, parted by '|'.
void read_tag(Attempt& a, const std::string& comment) {
  const size_t at = comment.find("shardfit1;");
  if (at == std::string::npos) return;
  const std::string tag = comment.substr(at);
  const size_t pins = tag.find("pins="), plan = tag.rfind(";plan=");
  if (pins == std::string::npos || plan == std::string::npos || plan < pins) return;
  for (const auto& p : split(tag.substr(pins + 5, plan - pins - 5), '&'))
    if (!trim(p).empty()) a.pins.push_back(trim(p));
  for (size_t i = plan + 6; i < tag.size() && std::isxdigit(static_cast<unsigned char>(tag[i])); ++i)
    a.plan_sha256 += tag[i];
  if (a.plan_sha256.size() != 64) a.plan_sha256.clear();
}

std::int64_t whole(const std::string& text) { return std::strtoll(text.c_str(), nullptr, 10); }

}  // namespace

std::vector<Gres> parse_gpu_tres(std::string_view text) {
  std::vector<Gres> typed;
  std::int64_t total = 0;
  std::string part;
  int depth = 0;
  const auto flush = [&] {
    std::string p = trim(part);
    part.clear();
    if (const size_t bracket = p.find('('); bracket != std::string::npos) p.resize(bracket);
    if (p.compare(0, 5, "gres/") == 0 || p.compare(0, 5, "gres:") == 0) p = p.substr(5);
    if (p.compare(0, 3, "gpu") != 0) return;
    p = p.substr(3);
    for (char& c : p)
      if (c == '=') c = ':';
    const auto words = split(p, ':');  // "" type count | "" count
    if (words.size() == 2) total += whole(words[1]);
    else if (words.size() == 3) {
      for (auto& g : typed)
        if (g.type == words[1]) {
          g.count += whole(words[2]);
          return;
        }
      typed.push_back({words[1], whole(words[2])});
    }
  };
  for (const char c : text) {
    depth += c == '(' || c == '[' ? 1 : c == ')' || c == ']' ? -1 : 0;
    if (c == ',' && depth <= 0) flush();
    else part += c;
  }
  flush();
  std::erase_if(typed, [](const Gres& g) { return g.count <= 0 || g.count > 1000000; });
  if (typed.empty() && total > 0 && total <= 1000000) typed.push_back({"", total});
  return typed;
}

bool Attempt::ended_at_once() const {
  static constexpr std::string_view kOfRuns[] = {"COMPLETED",     "FAILED",    "TIMEOUT",
                                                 "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED"};
  return start > 0 && end == start && std::find(std::begin(kOfRuns), std::end(kOfRuns), state) != std::end(kOfRuns);
}

Attempt parse_spool_line(std::string_view line, const std::string& where) {
  Json j;
  try {
    j = parse_json(line);
  } catch (const Error&) {
    throw Error("bad_json", where, "the line is not JSON");
  }
  if (!j.is_object()) throw Error("wrong_type", where, "an object is needed, not " + brief(j));
  ObjectReader r(j, where);
  if (const auto v = r.integer("v").value_or(0); v != 1)
    throw Error("unknown_version", r.at("v"), "version " + std::to_string(v) + " of the spool is not known",
                "this program reads version 1");
  const auto text = [&](const char* key) {
    const Json* v = r.get(key);
    if (!v) return std::string();
    const std::string t = v->is_string() ? v->get<std::string>() : v->dump();
    return nothing(t) ? std::string() : t;
  };
  // Lua has one kind of number, and Slurm marks "none" by values next to 2^32.
  const auto number = [&](const char* key) -> std::int64_t {
    const Json* v = r.get(key);
    if (!v) return 0;
    const double x = v->is_number()   ? v->get<double>()
                     : v->is_string() ? std::strtod(v->get<std::string>().c_str(), nullptr)
                                      : 0;
    return x > 0 && x < 4e9 ? static_cast<std::int64_t>(x) : 0;
  };
  const auto id = [&](const char* key) -> std::optional<std::int64_t> {
    const std::int64_t v = number(key);
    return v > 0 ? std::optional(v) : std::nullopt;
  };
  Attempt a;
  a.cluster = text("cluster");
  a.job_id = r.required_integer("job_id", 1);
  a.array_job_id = id("array_job_id");
  if (a.array_job_id) a.array_task_id = number("array_task_id");
  a.het_job_id = id("het_job_id");
  a.restart = number("restart_cnt");
  const Json* state = r.get("job_state");
  a.state = !state ? "" : state->is_number() ? state_name(number("job_state")) : to_lower(text("job_state"));
  for (char& c : a.state) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  a.submit = number("submit_time");
  a.start = number("start_time");
  a.end = number("end_time");
  a.partition = text("partition");
  a.nodes = text("nodes");
  a.total_nodes = number("total_nodes");
  a.total_cpus = number("total_cpus");
  a.user = text("user_name");
  if (a.user.empty()) a.user = text("user_id");
  a.account = text("account");
  a.name = text("name");
  a.work_dir = text("work_dir");
  a.gpus = parse_gpu_tres(text("tres_fmt_alloc_str"));
  if (a.gpus.empty()) a.gpus = parse_gpu_tres(text("gres_used"));
  if (a.gpus.empty()) {
    a.gpus = parse_gpu_tres(text("tres_per_node"));
    for (auto& g : a.gpus) g.count *= std::max<std::int64_t>(a.total_nodes, 1);
  }
  read_tag(a, text("admin_comment"));
  if (const Json* env = r.get("spank_job_env"); env && env->is_array())
    for (const auto& e : *env) {
      if (!e.is_string()) continue;
      const std::string s = e.get<std::string>();
      if (const size_t eq = s.find('='); eq != std::string::npos) a.environment[s.substr(0, eq)] = s.substr(eq + 1);
    }
  return a;
}

const char* sacct_columns() {
  return "Cluster,JobIDRaw,JobID,State,Submit,Start,End,Partition,NodeList,NNodes,NCPUS,AllocTRES,AdminComment,User,Account,JobName,WorkDir";
}

std::vector<Attempt> parse_sacct(std::string_view text, const std::string& cluster) {
  std::vector<Attempt> out;
  std::vector<std::string> header;
  int line_number = 0;
  for (const auto& raw : split(text, '\n')) {
    ++line_number;
    const std::string line = trim(raw);
    if (line.empty()) continue;
    auto cells = split(line, '|');
    if (header.empty()) {
      header = cells;
      if (std::find(header.begin(), header.end(), "JobIDRaw") == header.end() ||
          std::find(header.begin(), header.end(), "Start") == header.end())
        throw Error("bad_sacct", "line 1", "the first line names no columns JobIDRaw and Start",
                    std::string("run sacct -D -X -P --format=") + sacct_columns());
      continue;
    }
    // An AdminComment may hold '|' itself: the surplus belongs to it.
    const auto comment = static_cast<size_t>(std::find(header.begin(), header.end(), "AdminComment") - header.begin());
    while (cells.size() > header.size() && comment < header.size()) {
      cells[comment] += "|" + cells[comment + 1];
      cells.erase(cells.begin() + static_cast<std::ptrdiff_t>(comment) + 1);
    }
    if (cells.size() != header.size())
      throw Error("bad_sacct", "line " + std::to_string(line_number),
                  std::to_string(cells.size()) + " cells under " + std::to_string(header.size()) + " columns");
    const auto cell = [&](const char* name) {
      const auto it = std::find(header.begin(), header.end(), name);
      if (it == header.end()) return std::string();
      const std::string& t = cells[static_cast<size_t>(it - header.begin())];
      return nothing(t) ? std::string() : t;
    };
    const std::string raw_id = cell("JobIDRaw");
    if (raw_id.empty() || raw_id.find('.') != std::string::npos) continue;
    Attempt a;
    a.cluster = cell("Cluster").empty() ? cluster : cell("Cluster");
    a.job_id = whole(raw_id);
    if (a.job_id <= 0)
      throw Error("bad_sacct", "line " + std::to_string(line_number), "JobIDRaw \"" + raw_id + "\" is not a number");
    const std::string shown = cell("JobID");
    if (const size_t bar = shown.find('_'); bar != std::string::npos)
      a.array_job_id = whole(shown), a.array_task_id = whole(shown.substr(bar + 1));
    if (const size_t plus = shown.find('+'); plus != std::string::npos) a.het_job_id = whole(shown);
    a.state = split(cell("State"), ' ')[0];
    if (a.state == "PENDING" || a.state == "RUNNING" || a.state == "SUSPENDED") continue;
    a.submit = parse_time(cell("Submit")).value_or(0);
    a.start = parse_time(cell("Start")).value_or(0);
    a.end = parse_time(cell("End")).value_or(0);
    a.partition = cell("Partition");
    a.nodes = cell("NodeList");
    a.total_nodes = whole(cell("NNodes"));
    a.total_cpus = whole(cell("NCPUS"));
    a.gpus = parse_gpu_tres(cell("AllocTRES"));
    a.user = cell("User");
    a.account = cell("Account");
    a.name = cell("JobName");
    a.work_dir = cell("WorkDir");
    read_tag(a, cell("AdminComment"));
    out.push_back(std::move(a));
  }
  // Attempts of one job come in the order they were made.
  std::map<std::int64_t, std::int64_t> seen;
  for (auto& a : out) a.restart = seen[a.job_id]++;
  return out;
}

}  // namespace shardfit::pricing
