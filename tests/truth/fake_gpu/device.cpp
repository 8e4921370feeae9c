// Settings (environment): FAKEGPU_DEVICE one of the names below; FAKEGPU_MEMORY_MIB, the device's memory; FAKEGPU_CONTEXT_MIB, what
// context and libraries take of it (500); FAKEGPU_DEVICES, how many devices there are (8); FAKEGPU_EVENT_LAG, an event is done
// when so many launches or events came after it or someone waited (0: at once; -1: only when someone waited); FAKEGPU_LOG, a file
// that gets a line for each allocation and free of device memory; FAKEGPU_REPORT=1, peaks on stderr at exit.
#include "device.hpp"

#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace {

constexpr std::size_t kPage = std::size_t{2} << 20;         // granularity of device memory
constexpr std::size_t kArena = std::size_t{1} << 40;
constexpr std::size_t kCopied = std::size_t{1} << 20;       // larger copies are not carried out
constexpr std::uint64_t kFresh = 256;                       // launches after which what was copied in may have been overwritten

struct Named {
  const char* key;
  FakeGpuProperties properties;
};

// Compute capability, multiprocessors and limits a capability: CUDA C++ Programming Guide, "Technical Specifications per Compute
// Capability"; memory: total_memory as torch prints it on such a card.
constexpr Named kDevices[] = {
    {"V100-16", {"Tesla V100-SXM2-16GB", 16945512448, 7, 0, 80, 2048, 32, 98304, 98304, 6291456}},
    {"V100-32", {"Tesla V100-SXM2-32GB", 34089730048, 7, 0, 80, 2048, 32, 98304, 98304, 6291456}},
    {"T4", {"Tesla T4", 15835660288, 7, 5, 40, 1024, 16, 65536, 65536, 4194304}},
    {"A100-40", {"NVIDIA A100-SXM4-40GB", 42298834944, 8, 0, 108, 2048, 32, 167936, 166912, 41943040}},
    {"A100-80", {"NVIDIA A100-SXM4-80GB", 84987740160, 8, 0, 108, 2048, 32, 167936, 166912, 41943040}},
    {"A10G", {"NVIDIA A10G", 23609475072, 8, 6, 80, 1536, 16, 102400, 101376, 6291456}},
    {"RTX3090", {"NVIDIA GeForce RTX 3090", 25438126080, 8, 6, 82, 1536, 16, 102400, 101376, 6291456}},
    {"RTX4090", {"NVIDIA GeForce RTX 4090", 25393692672, 8, 9, 128, 1536, 24, 102400, 101376, 75497472}},
    {"L40S", {"NVIDIA L40S", 47697362944, 8, 9, 142, 1536, 24, 102400, 101376, 100663296}},
    {"H100", {"NVIDIA H100 80GB HBM3", 85017493504, 9, 0, 132, 2048, 32, 233472, 232448, 52428800}},
    {"H200", {"NVIDIA H200", 150109880320, 9, 0, 132, 2048, 32, 233472, 232448, 62914560}},
    {"B200", {"NVIDIA B200", 191503138816, 10, 0, 148, 2048, 32, 233472, 232448, 132644864}},
};

long setting(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::strtol(text, nullptr, 10) : otherwise;
}

struct Device {
  std::mutex mutex;
  FakeGpuProperties properties{};
  std::size_t context = 0, used = 0, used_peak = 0, pinned = 0, pinned_peak = 0;
  char* arena = nullptr;
  std::map<char*, std::size_t> taken;                        // device allocations
  std::map<char*, std::size_t> reserved;                     // address ranges of expandable segments
  std::map<char*, std::pair<std::size_t, bool>> host;        // pinned memory; true: allocated here, false: registered
  std::map<char*, std::pair<std::size_t, std::uint64_t>> written;  // what a copy put there, and when
  std::atomic<std::uint64_t> submitted{1}, finished{0};
  std::int64_t lag = 0;
  std::FILE* log = nullptr;

  Device() {
    const char* wanted = std::getenv("FAKEGPU_DEVICE");
    const std::string key = wanted && *wanted ? wanted : "A100-80";
    bool found = false;
    for (const auto& d : kDevices)
      if (key == d.key) {
        properties = d.properties;
        found = true;
      }
    if (!found) {
      std::fprintf(stderr, "fake gpu: FAKEGPU_DEVICE=%s is not known; known:", key.c_str());
      for (const auto& d : kDevices) std::fprintf(stderr, " %s", d.key);
      std::fprintf(stderr, "\n");
      std::exit(2);
    }
    if (const long mib = setting("FAKEGPU_MEMORY_MIB", 0); mib > 0) properties.memory = static_cast<std::uint64_t>(mib) << 20;
    context = static_cast<std::size_t>(setting("FAKEGPU_CONTEXT_MIB", 500)) << 20;
    lag = setting("FAKEGPU_EVENT_LAG", 0);
    if (const char* file = std::getenv("FAKEGPU_LOG"); file && *file) log = std::fopen(file, "w");
    void* at = mmap(nullptr, kArena, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
      std::perror("fake gpu: mmap");
      std::exit(2);
    }
    madvise(at, kArena, MADV_NOHUGEPAGE);
    arena = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(at) + kPage - 1) / kPage * kPage);
  }
  void report() {
    if (setting("FAKEGPU_REPORT", 0) != 0)
      std::fprintf(stderr, "fake gpu: device peak %zu bytes, pinned peak %zu bytes, %llu launches\n", used_peak, pinned_peak,
                   static_cast<unsigned long long>(submitted.load()));
    if (log) std::fflush(log);
  }

  bool take(std::size_t bytes) {
    if (bytes > properties.memory || used + bytes > properties.memory - context) return false;
    used += bytes;
    if (used > used_peak) used_peak = used;
    return true;
  }
};

Device& device() {
  static Device* it = [] {                                   // never destroyed: torch frees memory while it ends
    auto* d = new Device;
    std::atexit([] { device().report(); });
    return d;
  }();
  return *it;
}

std::size_t whole(std::size_t bytes) { return bytes == 0 ? kPage : (bytes + kPage - 1) / kPage * kPage; }

template <class Map>
auto covering(Map& map, const void* address) {
  auto at = map.upper_bound(static_cast<char*>(const_cast<void*>(address)));
  return at == map.begin() ? map.end() : std::prev(at);
}

}  // namespace

extern "C" {

const FakeGpuProperties* fakegpu_properties() { return &device().properties; }
int fakegpu_device_count() { return static_cast<int>(setting("FAKEGPU_DEVICES", 8)); }

void* fakegpu_allocate(std::size_t bytes) {
  auto& d = device();
  const std::lock_guard lock(d.mutex);
  bytes = whole(bytes);
  if (!d.take(bytes)) {
    if (d.log) std::fprintf(d.log, "refuse %zu used %zu\n", bytes, d.used);
    return nullptr;
  }
  char* at = d.arena;                                        // the lowest gap that is wide enough
  for (const auto& [start, size] : d.taken) {
    if (start - at >= static_cast<std::ptrdiff_t>(bytes)) break;
    at = start + size;
  }
  d.taken[at] = bytes;
  if (d.log) std::fprintf(d.log, "allocate %zu at %zu used %zu\n", bytes, static_cast<std::size_t>(at - d.arena), d.used);
  return at;
}

bool fakegpu_free(void* address) {
  if (!address) return true;
  auto& d = device();
  const std::lock_guard lock(d.mutex);
  const auto found = d.taken.find(static_cast<char*>(address));
  if (found == d.taken.end()) return false;
  madvise(address, found->second, MADV_DONTNEED);
  d.used -= found->second;
  if (d.log) std::fprintf(d.log, "free %zu used %zu\n", found->second, d.used);
  d.taken.erase(found);
  return true;
}

bool fakegpu_take(std::size_t bytes) {
  auto& d = device();
  const std::lock_guard lock(d.mutex);
  const bool ok = d.take(bytes);
  if (d.log) std::fprintf(d.log, "%s %zu used %zu\n", ok ? "take" : "refuse", bytes, d.used);
  return ok;
}

void fakegpu_give_back(std::size_t bytes) {
  auto& d = device();
  const std::lock_guard lock(d.mutex);
  d.used -= bytes;
  if (d.log) std::fprintf(d.log, "give back %zu used %zu\n", bytes, d.used);
}

void* fakegpu_reserve(std::size_t bytes) {
  auto& d = device();
  const std::lock_guard lock(d.mutex);
  void* at = mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  madvise(at, bytes + kPage, MADV_NOHUGEPAGE);
  auto* start = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(at) + kPage - 1) / kPage * kPage);
  d.reserved[start] = bytes;
  return start;
}

void fakegpu_unreserve(void* address, std::size_t bytes) {
  auto& d = device();
  const std::lock_guard lock(d.mutex);
  if (d.reserved.erase(static_cast<char*>(address)) != 0) munmap(address, bytes);
}

void fakegpu_memory(std::size_t* free_bytes, std::size_t* total_bytes) {
  auto& d = device();
  const std::lock_guard lock(d.mutex);
  *total_bytes = d.properties.memory;
  *free_bytes = d.properties.memory - d.context - d.used;
}

bool fakegpu_is_device(const void* address) {
  auto& d = device();
  const std::lock_guard lock(d.mutex);
  const auto* p = static_cast<const char*>(address);
  if (p >= d.arena && p < d.arena + (kArena - kPage)) return true;
  const auto r = covering(d.reserved, address);
  return r != d.reserved.end() && p < r->first + r->second;
}

void* fakegpu_host_allocate(std::size_t bytes) {
  auto& d = device();
  const std::lock_guard lock(d.mutex);
  const std::size_t pages = (bytes + 4095) / 4096 * 4096 + (bytes == 0 ? 4096 : 0);
  void* at = mmap(nullptr, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  d.host[static_cast<char*>(at)] = {pages, true};
  d.pinned += pages;
  if (d.pinned > d.pinned_peak) d.pinned_peak = d.pinned;
  if (d.log) std::fprintf(d.log, "pin %zu pinned %zu\n", pages, d.pinned);
  return at;
}

bool fakegpu_host_free(void* address) {
  if (!address) return true;
  auto& d = device();
  const std::lock_guard lock(d.mutex);
  const auto found = d.host.find(static_cast<char*>(address));
  if (found == d.host.end() || !found->second.second) return false;
  munmap(address, found->second.first);
  d.pinned -= found->second.first;
  if (d.log) std::fprintf(d.log, "unpin %zu pinned %zu\n", found->second.first, d.pinned);
  d.host.erase(found);
  return true;
}

void fakegpu_host_register(const void* address, std::size_t bytes) {
  auto& d = device();
  const std::lock_guard lock(d.mutex);
  d.host[static_cast<char*>(const_cast<void*>(address))] = {bytes, false};
  d.pinned += bytes;
  if (d.pinned > d.pinned_peak) d.pinned_peak = d.pinned;
  if (d.log) std::fprintf(d.log, "register %zu pinned %zu\n", bytes, d.pinned);
}

bool fakegpu_host_unregister(const void* address) {
  auto& d = device();
  const std::lock_guard lock(d.mutex);
  const auto found = d.host.find(static_cast<char*>(const_cast<void*>(address)));
  if (found == d.host.end()) return false;
  d.pinned -= found->second.first;
  d.host.erase(found);
  return true;
}

bool fakegpu_is_pinned(const void* address) {
  auto& d = device();
  const std::lock_guard lock(d.mutex);
  const auto found = covering(d.host, address);
  return found != d.host.end() && static_cast<const char*>(address) < found->first + found->second.first;
}

void fakegpu_submit() { device().submitted.fetch_add(1, std::memory_order_relaxed); }

void fakegpu_copy(void* to, const void* from, std::size_t bytes) {
  fakegpu_submit();
  if (bytes == 0 || bytes > kCopied) return;
  auto& d = device();
  const bool from_device = fakegpu_is_device(from), to_device = fakegpu_is_device(to);
  bool known = true;
  if (from_device) {
    // A kernel that was not run may have been meant to write here since: what was copied in is believed for a while only.
    const std::lock_guard lock(d.mutex);
    const auto w = covering(d.written, from);
    known = w != d.written.end() && static_cast<const char*>(from) + bytes <= w->first + w->second.first &&
            d.submitted.load() - w->second.second < kFresh;
  }
  if (known)
    std::memmove(to, from, bytes);
  else
    std::memset(to, 0, bytes);
  if (to_device && known) {
    const std::lock_guard lock(d.mutex);
    if (d.written.size() > 4096) d.written.clear();
    d.written[static_cast<char*>(to)] = {bytes, d.submitted.load()};
  }
}

void fakegpu_set(void* to, int value, std::size_t bytes) {
  fakegpu_submit();
  if (bytes == 0 || bytes > kCopied) return;
  std::memset(to, value, bytes);
  auto& d = device();
  const std::lock_guard lock(d.mutex);
  d.written[static_cast<char*>(to)] = {bytes, d.submitted.load()};
}

void fakegpu_synchronize() {
  auto& d = device();
  d.finished.store(d.submitted.load());
}

void fakegpu_record(FakeGpuEvent* event) { event->stamp = device().submitted.fetch_add(1) + 1; }

bool fakegpu_done(const FakeGpuEvent* event) {
  auto& d = device();
  if (event->stamp == 0 || d.lag == 0 || event->stamp <= d.finished.load()) return true;
  return d.lag > 0 && d.submitted.load() - event->stamp >= static_cast<std::uint64_t>(d.lag);
}
}
