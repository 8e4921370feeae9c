// Prints measured and predicted bytes of every run: family_table FAMILIES.jsonl CONFIGS.json
#include <cstdio>
#include <fmt/format.h>

#include "regions/base/error.hpp"
#include "tests/truth/families/family_rows.hpp"

int main(int argc, char** argv) {
  using namespace shardfit::memory;
  if (argc < 3) return 2;
  for (const auto& row : family_rows(argv[1])) {
    try {
      const BlockBytes p = predicted(row, argv[2]);
      const auto error = [](std::int64_t predicted, std::int64_t measured) { return measured > 0 ? 100.0 * (static_cast<double>(predicted) / static_cast<double>(measured) - 1) : 0.0; };
      std::string kept;
      for (std::size_t k = 0; k < row.measured.kept.size(); ++k) kept += k < p.kept.size() ? fmt::format(" {:+.1f}", error(p.kept[k], row.measured.kept[k])) : " ?";
      if (p.kept.size() != row.measured.kept.size()) kept += fmt::format(" ({} blocks)", p.kept.size());
      fmt::print("{:16} {:20} {:7} fwd {:+6.1f} loss {:+6.1f} bwd {:+6.1f} kept{}  | {:.1f} {:.1f} {:.1f} MiB kept[1] {:.2f} vs {:.2f}\n", row.family, row.variant, row.transformers, error(p.forward_peak, row.measured.forward_peak),
                 error(p.loss_peak, row.measured.loss_peak), error(p.backward_peak, row.measured.backward_peak), kept, row.measured.forward_peak / 1048576.0, row.measured.loss_peak / 1048576.0,
                 row.measured.backward_peak / 1048576.0, p.kept.size() > 1 ? p.kept[1] / 1048576.0 : 0, row.measured.kept.size() > 1 ? row.measured.kept[1] / 1048576.0 : 0);
    } catch (const std::exception& e) {
      fmt::print("{:16} {:20} {:7} {}\n", row.family, row.variant, row.transformers, e.what());
    }
  }
}
