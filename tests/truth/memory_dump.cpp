// memory_dump CASES [ID...]: one estimate a line, for score_memory.py.
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "tests/truth/memory_rows.hpp"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("usage: memory_dump CASES [ID...]\n", stderr);
    return 2;
  }
  const std::vector<std::string> only(argv + 2, argv + argc);
  const auto folder = std::filesystem::absolute(argv[1]).parent_path().string();
  for (const auto& c : shardfit::truth::read_cases(argv[1]))
    if (only.empty() || std::find(only.begin(), only.end(), c.id) != only.end())
      std::printf("%s\n", shardfit::truth::estimate_case(c, folder).dump().c_str());
  return 0;
}
