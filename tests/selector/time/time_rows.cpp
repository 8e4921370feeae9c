// time_rows FILE.jsonl: one estimate a line, time only; a row that cannot be answered gives an error record.
#include <filesystem>
#include <iostream>

#include "rows.hpp"

int main(int argc, char** argv) {
  using namespace shardfit;
  if (argc != 2) {
    std::cerr << "usage: time_rows FILE.jsonl\n";
    return 2;
  }
  const std::string folder = std::filesystem::absolute(argv[1]).parent_path().string();
  int failed = 0;
  for (const Json& line : timing::read_lines(argv[1])) {
    OrderedJson out;
    out["id"] = line.at("id");
    try {
      const timing::Row row = timing::read_row(line, folder);
      const auto model = model::load_model(row.job.model_path());
      const timing::Result result = timing::answer(row, model);
      const TimeEstimate& t = result.time;
      out["time"] = {{"step", t.step},           {"step_low", t.step_low},
                     {"step_high", t.step_high}, {"tokens_per_second_per_gpu", t.tokens_per_second_per_gpu},
                     {"bound_by", t.bound_by},   {"parts", t.parts}};
      out["fits"] = "unsure";
      out["basis"] = result.basis;
      out["assumed"] = result.assumed;
    } catch (const Error& error) {
      out["error"] = {{"code", error.code}, {"message", error.what()}};
      ++failed;
    }
    std::cout << out.dump() << '\n';
  }
  return failed ? 1 : 0;
}
