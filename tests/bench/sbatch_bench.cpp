// sbatch_bench CLUSTER_DIR JOB.json [PAIRS]: what shardfit adds to sbatch, in paired runs on a test cluster
// (tests/bench/sbatch_bench.sh starts one). Each pair runs the two commands one after the other, in alternating order;
// printed are both medians and the median of the pairs' differences, with the quartiles.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "plugin/spank/child.hpp"

namespace {

using Command = std::vector<std::string>;

double run(const Command& command, const std::vector<std::string>& environment) {
  const auto begin = std::chrono::steady_clock::now();
  const auto r = shardfit::spank::run_child(command, environment, 60);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  if (r.end != shardfit::spank::ChildResult::End::kExited || r.status != 0) {
    std::fprintf(stderr, "sbatch_bench: %s ... failed: %s\n", command[0].c_str(), r.err.c_str());
    std::exit(1);
  }
  return took.count();
}

double quantile(std::vector<double> v, double q) {
  std::sort(v.begin(), v.end());
  return v[static_cast<std::size_t>(q * static_cast<double>(v.size() - 1) + 0.5)];
}

void compare(const char* title, const Command& a, const std::vector<std::string>& a_env, const Command& b,
             const std::vector<std::string>& b_env, int pairs) {
  std::vector<double> as, bs, differences;
  run(a, a_env), run(b, b_env);  // caches
  for (int i = 0; i < pairs; ++i) {
    double ta, tb;
    if (i % 2 == 0) {
      ta = run(a, a_env), tb = run(b, b_env);
    } else {
      tb = run(b, b_env), ta = run(a, a_env);
    }
    as.push_back(ta), bs.push_back(tb), differences.push_back(tb - ta);
  }
  std::printf("%-44s %8.2f ms -> %8.2f ms, difference %+7.2f ms (quartiles %+.2f to %+.2f, %d pairs)\n", title,
              quantile(as, 0.5), quantile(bs, 0.5), quantile(differences, 0.5), quantile(differences, 0.25),
              quantile(differences, 0.75), pairs);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: sbatch_bench CLUSTER_DIR JOB.json [PAIRS]\n");
    return 2;
  }
  const std::string cluster = argv[1], job = argv[2];
  const int pairs = argc > 3 ? std::max(1, std::atoi(argv[3])) : 40;
  const std::vector<std::string> plain = {"SLURM_CONF=" + cluster + "/plain.conf"},
                                 ours = {"SLURM_CONF=" + cluster + "/slurm.conf",
                                         "SHARDFIT_CONF=" + cluster + "/shardfit.conf"};
  const Command sbatch = {"/usr/bin/env", "sbatch", "--hold", "-p", "cpu-berlin", "-o", "/dev/null", "--wrap", "true"};
  const Command show = {"/usr/bin/env", "sbatch", "--hw=show", "--hw-job=" + job, "-p",
                        "cpu-berlin",   "-o",     "/dev/null", "--wrap",          "true"};
  compare("plain sbatch: without -> with the plugin", sbatch, plain, sbatch, ours, pairs * 2);
  compare("sbatch without the plugin -> sbatch --hw=show", sbatch, plain, show, ours, pairs);
  return 0;
}
