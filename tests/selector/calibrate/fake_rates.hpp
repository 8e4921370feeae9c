// Rates of a machine that is easy to reckon with: 100 GFLOP/s forward, 80 and 50 backward, 10 GB/s between ranks.
#pragma once
#include "selector/time/calibration.hpp"

namespace shardfit::calibrate {

inline timing::BusyRates fake_rates(int ranks = 2, int threads = 1) {
  timing::BusyRates r;
  r.ranks = ranks;
  r.threads = threads;
  r.as_of = "2026-08-22T10:00:00Z";
  r.software = "test";
  for (double m : {128.0, 512.0})
    for (double k : {256.0, 1024.0})
      for (double n : {256.0, 1024.0, 32768.0}) {
        const double flops = 2 * m * k * n;
        r.gemms.push_back({m, k, n, flops / 100e9, flops / 80e9, flops / 50e9});
      }
  for (double s : {128.0, 512.0}) r.attention.push_back({s, 8, 8, 64, s * s * 8 * 64 * 1e-11, s * s * 8 * 64 * 3e-11});
  r.rms_norm = {1e-10, 2e-10};
  r.layer_norm = {1e-10, 2e-10};
  r.rope = {1e-10, 1e-10};
  r.gated = {2e-10, 3e-10};
  r.activation = {2e-10, 3e-10};
  r.residual = {1e-10, 1e-10};
  r.cross_entropy = {5e-10, 0};
  r.embedding = {1e-10, 2e-10};
  r.adamw = 5e-10;
  r.norm = 1e-10;
  r.clear = 2e-10;
  if (ranks > 1)
    for (double bytes : {1e6, 1e8}) {
      r.all_gather.push_back({bytes, bytes / 10e9});
      r.reduce_scatter.push_back({bytes, bytes / 5e9});
      r.all_reduce.push_back({bytes, bytes / 4e9});
    }
  return r;
}

}  // namespace shardfit::calibrate
