#include "plugin/spank/request.hpp"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace shardfit::spank {

const std::array<OptionText, kOptionCount> kOptionTexts = {{
    {"hw", "auto|show|off",
     "choose the hardware for --hw-job by total cost: auto submits, show only prints the decision", "HW"},
    {"hw-job", "FILE", "the training job to choose hardware for (JSON)", "HW_JOB"},
    {"hw-pin", "PRED[;PRED]", "where it may run, e.g. 'residency(EU|CH);sovereign'", "HW_PIN"},
    {"hw-deadline", "DURATION", "it must finish within, e.g. 12h", "HW_DEADLINE"},
    {"hw-max-cost", "AMOUNT", "it may cost at most, e.g. 500EUR", "HW_MAX_COST"},
    {"hw-gpu", "NAME[,NAME]", "only these GPU types", "HW_GPU"},
    {"hw-max-nodes", "N", "at most this many nodes", "HW_MAX_NODES"},
}};

Mode Request::mode() const {
  const auto& hw = values[kHw];
  return hw == "auto" ? Mode::kAuto : hw == "show" ? Mode::kShow : Mode::kOff;
}

std::string Request::stray() const {
  if (given[kHw] > 0) return "";
  for (std::size_t i = kHwJob; i < kOptionCount; ++i) {
    if (given[i] > from_env[i]) return kOptionTexts[i].name;
  }
  return "";
}

Settings parse_settings(int count, char* const* words) {
  Settings s;
  for (int i = 0; i < count; ++i) {
    const std::string word = words[i];
    if (word.rfind("shardfit=", 0) == 0) {
      s.shardfit = word.substr(9);
    } else if (word.rfind("conf=", 0) == 0) {
      s.conf = word.substr(5);
    } else if (word.rfind("timeout=", 0) == 0) {
      char* end = nullptr;
      s.timeout_seconds = std::strtod(word.c_str() + 8, &end);
      if (*end || !std::isfinite(s.timeout_seconds) || s.timeout_seconds <= 0) {
        s.timeout_seconds = 0;
        s.unknown = word;
      }
    } else if (s.unknown.empty()) {
      s.unknown = word;
    }
  }
  return s;
}

double decide_timeout(const std::string& text) {
  constexpr double kDefault = 3;
  static const std::string key = "\"decide_timeout_seconds\"";
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!quoted && text.compare(i, 2, "//") == 0) {
      i = std::min(text.find('\n', i), text.size() - 1);
    } else if (!quoted && text.compare(i, 2, "/*") == 0) {
      const auto end = text.find("*/", i + 2);
      if (end == std::string::npos) break;
      i = end + 1;
    } else if (!quoted && text.compare(i, key.size(), key) == 0) {
      const auto colon = text.find_first_not_of(" \t\r\n", i + key.size());
      if (colon == std::string::npos || text[colon] != ':') return kDefault;
      const double value = std::strtod(text.c_str() + colon + 1, nullptr);
      return std::isfinite(value) && value > 0 && value <= 600 ? value : kDefault;
    } else if (text[i] == '"') {
      quoted = !quoted;
    } else if (quoted && text[i] == '\\') {
      ++i;
    }
  }
  return kDefault;
}

std::string site_file(const Settings& settings) {
  const char* named = std::getenv("SHARDFIT_CONF");
  if (named && *named) return named;
  return settings.conf.empty() ? "/etc/shardfit/shardfit.conf" : settings.conf;
}

double timeout_in_force(const Settings& settings) {
  if (settings.timeout_seconds > 0) return settings.timeout_seconds;
  std::string text;
  if (std::FILE* file = std::fopen(site_file(settings).c_str(), "re")) {
    char buffer[8192];
    for (std::size_t n; text.size() < (1u << 20) && (n = std::fread(buffer, 1, sizeof buffer, file)) > 0;)
      text.append(buffer, n);
    std::fclose(file);
  }
  return decide_timeout(text);
}

std::string find_shardfit(const Settings& settings, const std::string& plugin_path, std::string& looked) {
  std::vector<std::string> places;
  if (!settings.shardfit.empty()) {
    places = {settings.shardfit};  // the administrator named it: no other will do
  } else {
    const auto slash = plugin_path.rfind('/');
    if (slash != std::string::npos) {
      const std::string folder = plugin_path.substr(0, slash);
      for (const char* below : {"/shardfit", "/../bin/shardfit", "/../../bin/shardfit", "/../../../bin/shardfit"})
        places.push_back(folder + below);
    }
    const char* path = std::getenv("PATH");
    std::string folders = path ? path : "/usr/local/bin:/usr/bin:/bin";
    for (std::size_t at = 0; at <= folders.size();) {
      const auto colon = std::min(folders.find(':', at), folders.size());
      if (colon > at) places.push_back(folders.substr(at, colon - at) + "/shardfit");
      at = colon + 1;
    }
  }
  for (const auto& p : places) {
    if (::access(p.c_str(), X_OK) == 0) return p;
  }
  looked = settings.shardfit.empty() ? "beside the plugin and in PATH" : settings.shardfit;
  return "";
}

}  // namespace shardfit::spank
