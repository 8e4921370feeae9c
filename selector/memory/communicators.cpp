#include "selector/memory/communicators.hpp"

#include <algorithm>

#include "selector/hardware/device.hpp"

namespace shardfit::memory {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// A pair of connections (one to send, one to receive) on one channel between GPUs of a node. src/init.cc: buffers of 512 KiB (LL),
// 4800 KiB (LL128) and 4 MiB (Simple); src/transport/p2p.cc: the receiver holds them, rounded to 2 MiB, the sender 2 MiB; where the
// receiver reads (Ampere) the Simple buffer lies at the sender: 6 + 6. Twelve either way. The same in 2.14 to 2.28.
constexpr std::int64_t kPair = 12 * kMiB;
// Kernels, work queues and the rest. NVIDIA/nccl issue 964: 544 MiB for two A100 and 688 for three or four, of which the buffers above
// are 24 channels x 12 and x 18 MiB (the first rank of a chain of the tree).
constexpr std::int64_t kProcess = 256 * kMiB;
constexpr std::int64_t kPeerChannels = 32;   // src/graph/paths.cc: ncclTopoComputeP2pChannels; issue 1685: 32 a pair on H100

// The NCCL release that a torch wheel brings (requires_dist of the wheels on PyPI), as major * 100 + minor.
int nccl_of(int torch_date) {
  struct Row {
    int since, nccl;
  };
  static constexpr Row kRows[] = {{0, 214}, {20231004, 218}, {20240130, 219}, {20240424, 220}, {20241017, 221}, {20250423, 226}, {20250806, 227}};
  int nccl = kRows[0].nccl;
  for (const auto& r : kRows)
    if (r.since <= torch_date) nccl = r.nccl;
  return nccl;
}

// A trainer known by its release only is taken with the torch of its time. Days of Hugging Face transformers' releases on PyPI.
int library_date(const Setup& s) {
  if (s.torch_date != kNewest || s.trainer != "transformers" || s.age == kNewest) return s.torch_date;
  struct Row {
    int release, date;
  };
  static constexpr Row kRows[] = {{400, 20201130}, {420, 20220616}, {430, 20230608}, {436, 20231211}, {440, 20240418}, {445, 20240925}, {448, 20250110}, {452, 20250520}, {456, 20250829}};
  int date = kRows[0].date;
  for (const auto& r : kRows)
    if (r.release <= s.age) date = r.date;
  return date;
}

bool linked(const Setup& s) { return s.device.nvlink_gbs_one_way.value_or(0) >= 100; }
// Multicast in the switch: Hopper and Blackwell with SXM boards.
bool switched(const Setup& s) { return s.device.compute_capability_number() >= 9 && s.device.compute_capability_number() < 12 && s.device.nvlink_gbs_one_way.value_or(0) >= 400; }

// Channels of rings and trees: what ncclTopoPostset makes of the search (src/graph/connect.cc), as its logs print it: 24 on boards of
// Ampere and Hopper in one node, 16 over several Hopper nodes, 12 on V100; without NVLink 2 to 4.
std::int64_t channels_of(const Setup& s, const Communicator& c) {
  if (!linked(s)) return 4;
  const double cc = s.device.compute_capability_number();
  if (cc >= 10) return 32;
  if (cc >= 9) return c.ranks > c.local_ranks ? 16 : 24;
  return cc >= 8 ? 24 : 12;
}

// src/transport/nvls.cc: a send and a receive buffer for each channel and each head (GPU of the node).
std::int64_t nvls_bytes(const Setup& s, const Communicator& c, int nccl, std::int64_t channels) {
  if (!switched(s) || nccl < 218 || c.local_ranks < 3) return 0;
  if (nccl < 220) return 16 * 2 * (4 + 2) * c.local_ranks * kMiB;
  if (nccl < 221) return channels * 2 * (4 + 2) * c.local_ranks * kMiB;
  if (nccl < 222) return channels * 2 * (1 + 2) * c.local_ranks * kMiB;
  const std::int64_t lanes = s.device.compute_capability_number() >= 10 ? 24 : 16;
  return c.reduces_all ? lanes * 2 * c.local_ranks * kMiB : 0;     // connected when first used (NCCL_RUNTIME_CONNECT)
}

}  // namespace

std::vector<Communicator> communicators_of(const Setup& s) {
  std::vector<Communicator> groups;
  if (s.gpus <= 1) return groups;
  const std::int64_t node = std::max<std::int64_t>(1, s.plan.gpus_per_node);
  // Ranks that lie `stride` apart: tensor parallel ranks are neighbours, then context, then data, pipeline stages outermost.
  const auto add = [&](std::int64_t ranks, std::int64_t stride, bool reduces_all = false, std::int64_t peers = 0) {
    if (ranks <= 1) return;
    const std::int64_t local = std::clamp<std::int64_t>(node / std::max<std::int64_t>(1, stride), 1, ranks);
    groups.push_back({ranks, local, reduces_all, std::min(peers, local - 1)});
  };
  const std::int64_t data = std::max<std::int64_t>(1, s.gpus / (s.tp * s.cp * s.pp)), inner = s.tp * s.cp;
  const bool sums = s.stage <= 1;
  const bool only_data = inner == 1 && s.pp == 1;
  if (s.engine == Engine::kZero || !only_data || (s.stage >= 1 && s.shard > 1 && s.shard < data)) add(s.gpus, 1);   // the default group: barriers, broadcasts
  if (s.stage >= 1 && s.shard > 1 && s.shard < data) {
    add(s.shard, inner);
    add(data / s.shard, inner * s.shard, true);
  } else {
    add(data, inner, sums);
  }
  add(s.tp, 1, !s.sequence_parallel);
  add(s.cp, s.tp, false, 2);
  add(s.pp, inner * data, false, 2);
  add(s.ep, inner, false, s.ep - 1);
  return groups;
}

CommunicatorBytes communicator_bytes(const Setup& s) {
  CommunicatorBytes b;
  const auto groups = communicators_of(s);
  if (groups.empty()) return b;
  const int nccl = nccl_of(library_date(s));
  b.least = b.likely = kProcess;
  for (const auto& c : groups) {
    const std::int64_t channels = channels_of(s, c), peers = linked(s) ? c.peers * kPeerChannels * kPair : 0;
    const std::int64_t ring = channels * kPair, tree = c.ranks > 2 ? ring : 0;    // the tree shares two ranks' connections with the ring
    b.least += ring + peers;
    b.likely += ring + tree + peers + nvls_bytes(s, c, nccl, channels);
  }
  return b;
}

}  // namespace shardfit::memory
