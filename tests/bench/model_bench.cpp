// How long a config.json takes to become a Model: model_bench [REPEATS]
//
// Every file of tests/truth/configs and models, best of REPEATS, after reading; prints the slowest and the median.
// Budget: 0.3 ms.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

#include "regions/base/files.hpp"
#include "selector/model/model.hpp"

int main(int count, char** arguments) {
  const int repeats = count > 1 ? std::max(1, std::atoi(arguments[1])) : 20;
  std::vector<std::pair<double, std::string>> times;
  for (const char* folder : {"configs", "models"})
    for (const auto& entry :
         std::filesystem::directory_iterator(std::string(SHARDFIT_SOURCE_DIR) + "/tests/truth/" + folder)) {
      if (entry.path().extension() != ".json") continue;
      const std::string text = shardfit::read_file(entry.path());
      double best = 1e9;
      for (int i = 0; i < repeats; ++i) {
        timespec before{}, after{};
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
        const auto model = shardfit::model::parse_model(text, entry.path().string());
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
        best = std::min(best, static_cast<double>(after.tv_sec - before.tv_sec) * 1e6 +
                                  static_cast<double>(after.tv_nsec - before.tv_nsec) / 1e3);
      }
      times.emplace_back(best, entry.path().filename().string());
    }
  std::sort(times.rbegin(), times.rend());
  for (std::size_t i = 0; i < std::min<std::size_t>(6, times.size()); ++i)
    std::printf("%8.0f us  %s\n", times[i].first, times[i].second.c_str());
  std::printf("%8.0f us  median of %zu files\n", times[times.size() / 2].first, times.size());
}
