// Reads the one-line records of `scontrol -o`: NodeName=..., PartitionName=..., ReservationName=...
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>

#include "plugin/inventory/slurm_inventory.hpp"
#include "regions/base/error.hpp"
#include "regions/base/text.hpp"
#include "regions/base/time.hpp"

namespace shardfit::inventory {
namespace {

// The value of " KEY=" in a record; values may hold spaces ("OS=Linux 6.1 #1 SMP"), so one ends where the next key
// begins.
std::string value(std::string_view line, std::string_view key) {
  std::size_t at = 0;
  for (;;) {
    at = line.find(key, at);
    if (at == std::string_view::npos) return "";
    const auto after = at + key.size();
    if ((at == 0 || line[at - 1] == ' ') && after < line.size() && line[after] == '=') {
      at = after + 1;
      break;
    }
    at = after;
  }
  auto end = at;
  for (;;) {
    end = line.find(' ', end);
    if (end == std::string_view::npos) return trim(line.substr(at));
    auto next = end + 1;
    while (next < line.size() &&
           (std::isalnum(static_cast<unsigned char>(line[next])) || line[next] == '_' || line[next] == ':'))
      ++next;
    if (next < line.size() && line[next] == '=' && next > end + 1) break;
    ++end;
  }
  return trim(line.substr(at, end - at));
}

std::int64_t number(const std::string& text) {
  std::int64_t n = 0;
  std::from_chars(text.data(), text.data() + text.size(), n);
  return n;
}

// Empty for "ALL", "(null)", "N/A": no such limit.
std::vector<std::string> names(const std::string& text) {
  if (text.empty() || text == "ALL" || text == "(null)" || text == "N/A") return {};
  std::vector<std::string> out;
  for (auto& word : split(text, ',')) {
    if (!word.empty()) out.push_back(word);
  }
  return out;
}

// "gpu:h100:8(S:0-1),gpu:2,shard:16" -> the GPUs.
std::vector<pricing::Gres> gpus(const std::string& text) {
  std::vector<pricing::Gres> out;
  std::string plain;
  int depth = 0;
  for (const char c : text) {
    if (c == '(') ++depth;
    if (depth == 0) plain += c;
    if (c == ')') --depth;
  }
  for (const auto& entry : split(plain, ',')) {
    auto parts = split(entry, ':');
    if (parts.empty() || (parts[0] != "gpu" && parts[0] != "gres/gpu")) continue;
    pricing::Gres g;
    if (parts.size() == 1) {
      g.count = 1;
    } else {
      g.count = number(parts.back());
      if (parts.size() >= 3) g.type = parts[1];
    }
    if (g.count > 0) out.push_back(g);
  }
  return out;
}

// "7-00:00:00", "04:00:00", "30:00" (minutes), "UNLIMITED".
std::optional<double> seconds(const std::string& text) {
  if (text.empty() || text == "UNLIMITED" || text == "NONE" || text == "N/A") return std::nullopt;
  double days = 0;
  auto clock = text;
  if (const auto dash = text.find('-'); dash != std::string::npos) {
    days = std::atof(text.substr(0, dash).c_str());
    clock = text.substr(dash + 1);
  }
  double total = 0;
  const auto parts = split(clock, ':');
  for (const auto& p : parts) total = total * 60 + std::atof(p.c_str());
  if (parts.size() == 1) total *= 60;
  return days * 86400 + total;
}

struct Reservation {
  std::string name;
  std::set<std::string> nodes;
};

pricing::Node node(std::string_view line) {
  pricing::Node n;
  n.name = value(line, "NodeName");
  n.gpus = gpus(value(line, "Gres"));
  const auto effective = number(value(line, "CPUEfctv")), total = number(value(line, "CPUTot"));
  n.cpus = effective > 0 ? effective : total;
  const auto threads = std::max<std::int64_t>(1, number(value(line, "ThreadsPerCore")));
  n.cores = n.cpus / threads;
  n.memory_mib = std::max<std::int64_t>(0, number(value(line, "RealMemory")) - number(value(line, "MemSpecLimit")));
  auto features = value(line, "ActiveFeatures");
  if (features.empty() || features == "(null)") features = value(line, "AvailableFeatures");
  n.features = names(features);
  n.state = why_not_usable(value(line, "State"));
  n.reason = value(line, "Reason");
  return n;
}

pricing::Partition partition(std::string_view line) {
  pricing::Partition p;
  p.name = value(line, "PartitionName");
  p.is_default = value(line, "Default") == "YES";
  p.up = value(line, "State") == "UP";
  p.max_seconds = seconds(value(line, "MaxTime"));
  const auto most = value(line, "MaxNodes");
  if (!most.empty() && most != "UNLIMITED") p.max_nodes = number(most);
  p.allow_accounts = names(value(line, "AllowAccounts"));
  p.deny_accounts = names(value(line, "DenyAccounts"));
  p.allow_qos = names(value(line, "AllowQos"));
  p.deny_qos = names(value(line, "DenyQos"));
  p.allow_groups = names(value(line, "AllowGroups"));
  return p;
}

}  // namespace

std::string why_not_usable(std::string_view state) {
  bool reserved = false;
  for (auto token : split(state, '+')) {
    const bool silent = token.find('*') != std::string::npos;
    while (!token.empty() && !std::isalpha(static_cast<unsigned char>(token.back()))) token.pop_back();
    if (token == "DOWN") return "down";
    if (silent || token == "NOT_RESPONDING" || token == "NO_RESPOND") return "not responding";
    if (token == "DRAIN" || token == "DRAINED" || token == "DRAINING") return "drained";
    if (token == "FAIL" || token == "FAILING" || token == "ERROR" || token == "INVAL" || token == "INVALID_REG")
      return "failed";
    if (token == "FUTURE") return "future";
    if (token == "UNKNOWN") return "unknown";
    if (token == "MAINT" || token == "MAINTENANCE") return "in maintenance";
    if (token == "REBOOT" || token == "REBOOT_ISSUED") return "rebooting";
    if (token == "RESERVED") reserved = true;
  }
  return reserved ? "reserved" : "";
}

pricing::Inventory parse_scontrol(std::string_view text, const Query& query) {
  pricing::Inventory inventory;
  inventory.cluster = query.cluster;
  inventory.as_of = format_time(now_seconds());
  std::map<std::string, std::vector<std::string>> nodes_of;
  std::vector<std::string> reservations, reserved_nodes;
  bool found = false;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\n', at), text.size());
    auto line = text.substr(at, end - at);
    at = end + 1;
    while (line.starts_with("scontrol: ")) line.remove_prefix(10);  // the prompt of builds without readline
    if (line.starts_with("NodeName=")) {
      auto n = node(line);
      for (const auto& p : names(value(line, "Partitions"))) nodes_of[p].push_back(n.name);
      inventory.nodes.push_back(std::move(n));
    } else if (line.starts_with("PartitionName=")) {
      auto p = partition(line);
      if (value(line, "RootOnly") == "YES" || (value(line, "ReqResv") == "YES" && query.reservation.empty()))
        p.up = false;
      inventory.partitions.push_back(std::move(p));
    } else if (line.starts_with("ReservationName=")) {
      reservations.push_back(value(line, "ReservationName"));
      for (const auto& wanted : split(query.reservation, ',')) {
        if (wanted != reservations.back()) continue;
        found = true;
        for (auto& name : expand_hostlist(value(line, "Nodes"))) reserved_nodes.push_back(std::move(name));
      }
    }
  }
  for (auto& p : inventory.partitions) p.nodes = nodes_of[p.name];
  if (!query.reservation.empty()) {
    if (!found) {
      const auto near = nearest(query.reservation, reservations);
      throw Error("unknown_reservation", "--reservation", "Slurm has no reservation \"" + query.reservation + "\"",
                  near ? "did you mean \"" + *near + "\"?" : "scontrol show reservation lists them");
    }
    const std::set<std::string> inside(reserved_nodes.begin(), reserved_nodes.end());
    for (auto& n : inventory.nodes) {
      if (!inside.count(n.name)) {
        n.state = "outside reservation " + query.reservation;
      } else if (n.state == "reserved" || n.state == "in maintenance") {
        n.state.clear();
      }
    }
  }
  return inventory;
}

}  // namespace shardfit::inventory
