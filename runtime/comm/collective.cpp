#include "runtime/comm/collective.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "regions/base/files.hpp"

namespace shardfit::comm {

std::int64_t width_of(Type type) { return type == Type::kFp32 ? 4 : type == Type::kBf16 ? 2 : 1; }

std::string_view name_of(Op op) {
  switch (op) {
    case Op::kAllGather: return "all_gather";
    case Op::kReduceScatter: return "reduce_scatter";
    case Op::kAllReduce: return "all_reduce";
    case Op::kBroadcast: return "broadcast";
    case Op::kBarrier: return "barrier";
  }
  return "?";
}

// Notes an operation before it starts and marks it done when it ends without an exception.
class Collective::Entry {
 public:
  Entry(Collective& owner, Op op, std::int64_t bytes)
      : record_(owner.history_[static_cast<std::size_t>(owner.seq_) % owner.history_.size()]) {
    record_ = {++owner.seq_, bytes, owner.step_, op, false};
  }
  void done() { record_.done = true; }

 private:
  Record& record_;
};

void Collective::all_gather(const void* in, void* out, std::int64_t elements, Type type) {
  Entry entry(*this, Op::kAllGather, elements * ranks_ * width_of(type));
  do_all_gather(in, out, elements, type);
  entry.done();
}

void Collective::reduce_scatter(const void* in, Type in_type, void* out, Type out_type, std::int64_t elements) {
  Entry entry(*this, Op::kReduceScatter, elements * ranks_ * width_of(in_type));
  do_reduce_scatter(in, in_type, out, out_type, elements);
  entry.done();
}

void Collective::all_reduce(void* data, std::int64_t elements, Type type) {
  Entry entry(*this, Op::kAllReduce, elements * width_of(type));
  do_all_reduce(data, elements, type);
  entry.done();
}

void Collective::broadcast(void* data, std::int64_t bytes, int root) {
  Entry entry(*this, Op::kBroadcast, bytes);
  do_broadcast(data, bytes, root);
  entry.done();
}

void Collective::barrier() {
  Entry entry(*this, Op::kBarrier, 0);
  do_barrier();
  entry.done();
}

double Collective::sum(double value) {
  Entry entry(*this, Op::kAllReduce, 8);
  std::vector<double> all(static_cast<std::size_t>(ranks_));
  exchange(&value, all.data(), sizeof value);
  double total = 0;
  for (double one : all) total += one;
  entry.done();
  return total;
}

double Collective::largest(double value) {
  Entry entry(*this, Op::kAllReduce, 8);
  std::vector<double> all(static_cast<std::size_t>(ranks_));
  exchange(&value, all.data(), sizeof value);
  entry.done();
  double most = all[0];
  for (double one : all) most = std::isnan(one) || one > most ? one : most;
  return most;
}

void Collective::dump(const std::filesystem::path& folder, const std::string& why) const noexcept {
  try {
    nlohmann::ordered_json out{{"rank", rank_}, {"ranks", ranks_}, {"backend", std::string(backend())}, {"why", why}};
    auto& list = out["collectives"] = nlohmann::ordered_json::array();
    const auto size = static_cast<std::int64_t>(history_.size());
    for (std::int64_t seq = std::max<std::int64_t>(seq_ - size, 0); seq < seq_; ++seq) {
      const auto& record = history_[static_cast<std::size_t>(seq % size)];
      list.push_back({{"seq", record.seq},
                      {"op", std::string(name_of(record.op))},
                      {"bytes", record.bytes},
                      {"group", "world"},
                      {"step", record.step},
                      {"state", record.done ? "done" : "waiting"}});
    }
    std::filesystem::create_directories(folder);
    write_file_atomic(folder / fmt::format("rank-{}.json", rank_), out.dump(1) + "\n");
  } catch (...) {  // a dump is a courtesy; the error that led here is told anyway
  }
}

namespace {

constexpr std::int64_t kTile = 4096;

float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

void load(const void* from, Type type, std::int64_t first, float* to, std::int64_t n, bool add) {
  if (type == Type::kFp32) {
    const auto* values = static_cast<const float*>(from) + first;
    if (add) {
      for (std::int64_t i = 0; i < n; ++i) to[i] += values[i];
    } else {
      std::memcpy(to, values, static_cast<std::size_t>(n) * sizeof(float));
    }
  } else {
    const auto* values = static_cast<const std::uint16_t*>(from) + first;
    if (add) {
      for (std::int64_t i = 0; i < n; ++i) to[i] += from_bf16(values[i]);
    } else {
      for (std::int64_t i = 0; i < n; ++i) to[i] = from_bf16(values[i]);
    }
  }
}

}  // namespace

void add_in_order(const void* const* parts, int count, Type in_type, void* out, Type out_type, std::int64_t elements) {
  alignas(64) float tile[kTile];
  for (std::int64_t first = 0; first < elements; first += kTile) {
    const auto n = std::min(kTile, elements - first);
    for (int part = 0; part < count; ++part) load(parts[part], in_type, first, tile, n, part > 0);
    if (out_type == Type::kFp32) {
      std::memcpy(static_cast<float*>(out) + first, tile, static_cast<std::size_t>(n) * sizeof(float));
    } else {
      auto* values = static_cast<std::uint16_t*>(out) + first;
      for (std::int64_t i = 0; i < n; ++i) values[i] = to_bf16(tile[i]);
    }
  }
}

namespace {

class Single final : public Collective {
 public:
  Single() : Collective(0, 1) {}
  std::string_view backend() const override { return "none"; }
  void exchange(const void* in, void* out, std::int64_t bytes) override {
    std::memcpy(out, in, static_cast<std::size_t>(bytes));
  }

 private:
  void do_all_gather(const void* in, void* out, std::int64_t elements, Type type) override {
    if (in != out) std::memcpy(out, in, static_cast<std::size_t>(elements * width_of(type)));
  }
  void do_reduce_scatter(const void* in, Type in_type, void* out, Type out_type, std::int64_t elements) override {
    add_in_order(&in, 1, in_type, out, out_type, elements);
  }
  void do_all_reduce(void*, std::int64_t, Type) override {}
  void do_broadcast(void*, std::int64_t, int) override {}
  void do_barrier() override {}
};

}  // namespace

std::unique_ptr<Collective> make_single() { return std::make_unique<Single>(); }

}  // namespace shardfit::comm
