#include "runtime/comm/world.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "regions/base/error.hpp"
#include "regions/base/text.hpp"
#include "runtime/comm/collective.hpp"

namespace shardfit::comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::uint32_t kMostPayload = 1U << 20;
constexpr std::string_view kMagic = "shardfit-world-1";

// Frames: one byte of kind, four bytes of length, the payload.
constexpr char kHello = 'H', kTable = 'W', kRefused = 'R', kText = 'T', kFailure = 'X', kFarewell = 'B';

class Socket {
 public:
  explicit Socket(int descriptor = -1) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    if (this != &other) {
      reset();
      descriptor_ = std::exchange(other.descriptor_, -1);
    }
    return *this;
  }
  ~Socket() { reset(); }
  int get() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }
  void reset() {
    if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  }

 private:
  int descriptor_;
};

int milliseconds_left(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, 1'000'000));
}

// False when the peer is gone or the deadline has passed.
bool wait_for(int descriptor, short events, Clock::time_point deadline) {
  for (;;) {
    pollfd one{descriptor, events, 0};
    const int ready = ::poll(&one, 1, milliseconds_left(deadline));
    if (ready > 0) return true;
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0 || Clock::now() >= deadline) return false;
  }
}

bool send_all(int descriptor, const char* data, std::size_t bytes, Clock::time_point deadline) {
  while (bytes > 0) {
    const auto sent = ::send(descriptor, data, bytes, MSG_NOSIGNAL);
    if (sent > 0) {
      data += sent;
      bytes -= static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(descriptor, POLLOUT, deadline)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool send_frame(int descriptor, char kind, std::string_view payload, Clock::time_point deadline) {
  std::string frame(1, kind);
  const auto length = static_cast<std::uint32_t>(payload.size());
  for (int shift = 0; shift < 32; shift += 8) frame.push_back(static_cast<char>(length >> shift & 0xffU));
  frame += payload;
  return send_all(descriptor, frame.data(), frame.size(), deadline);
}

bool receive_all(int descriptor, char* data, std::size_t bytes, Clock::time_point deadline) {
  while (bytes > 0) {
    const auto got = ::recv(descriptor, data, bytes, 0);
    if (got > 0) {
      data += got;
      bytes -= static_cast<std::size_t>(got);
    } else if (got == 0) {
      return false;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(descriptor, POLLIN, deadline)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

struct Frame {
  char kind = 0;
  std::string payload;
};

std::optional<Frame> receive_frame(int descriptor, Clock::time_point deadline) {
  unsigned char head[5];
  if (!receive_all(descriptor, reinterpret_cast<char*>(head), sizeof head, deadline)) return std::nullopt;
  std::uint32_t length = 0;
  for (int i = 0; i < 4; ++i) length |= static_cast<std::uint32_t>(head[1 + i]) << (8 * i);
  if (length > kMostPayload) return std::nullopt;
  Frame frame{static_cast<char>(head[0]), std::string(length, '\0')};
  if (!receive_all(descriptor, frame.payload.data(), length, deadline)) return std::nullopt;
  return frame;
}

void make_nonblocking(int descriptor) {
  const int on = 1;
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK);
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
}

// Which ranks share memory: those of the same boot of the same machine that see the same /dev/shm.
std::string host_identity() {
  std::string boot, name(256, '\0');
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  if (::gethostname(name.data(), name.size() - 1) != 0) name[0] = '\0';
  struct stat shm {};
  ::stat("/dev/shm", &shm);
  return fmt::format("{}/{}/{}", name.c_str(), boot, static_cast<unsigned long>(shm.st_dev));
}

Error lost(const std::string& message, const std::string& remedy = "") {
  return {"rank_lost", "", message, remedy, kExitRankLost};
}

Socket listen_on(const std::string& address, int port) {
  Socket listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener)
    throw Error("socket_failed", "", fmt::format("cannot make a socket: {}", std::strerror(errno)), "", kExitFailed);
  const int on = 1;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  to.sin_addr.s_addr = address == "127.0.0.1" || address == "localhost" ? htonl(INADDR_LOOPBACK) : htonl(INADDR_ANY);
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0 || ::listen(listener.get(), 1024) != 0)
    throw Error("port_taken", "MASTER_PORT", fmt::format("cannot listen on port {}: {}", port, std::strerror(errno)),
                "set MASTER_PORT to a free port", kExitFailed);
  return listener;
}

}  // namespace

Listening listen_on_loopback() {
  auto listener = listen_on("127.0.0.1", 0);
  sockaddr_in at{};
  socklen_t size = sizeof at;
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &size);
  const int kept = ::dup(listener.get());  // without close-on-exec: rank 0 inherits it
  return {kept, ntohs(at.sin_port)};
}

double timeout_from_environment() {
  const char* text = std::getenv("SHARDFIT_TIMEOUT");
  if (!text || !*text) return 600;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end || !(seconds > 0) || !(seconds <= 1e7))
    throw Error("out_of_range", "SHARDFIT_TIMEOUT", fmt::format("\"{}\" is not a number of seconds", text),
                "set it to seconds, e.g. 600");
  return seconds;
}

struct World::Parts {
  WorldOptions options;
  std::string identity = host_identity();
  std::vector<std::string> hosts;  // by rank
  std::vector<Socket> peers;       // rank 0: by rank (own place empty); others: [0] only
  int wake[2] = {-1, -1};
  std::thread watcher;
  std::mutex sending;

  mutable std::mutex mutex;
  mutable std::condition_variable news;
  std::deque<std::string> texts;
  std::vector<bool> left;  // said farewell
  std::string failure;
  int failure_status = kExitRankLost;
  std::atomic<bool> failed{false};

  Clock::time_point deadline() const {
    return Clock::now() +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.timeout_seconds));
  }

  void note_failure(const std::string& message, int status) {
    std::lock_guard lock(mutex);
    if (!failed) {
      failure = message;
      failure_status = status;
      failed = true;
    }
    news.notify_all();
  }

  void tell_all(char kind, std::string_view payload, int except = -1) {
    std::lock_guard lock(sending);
    const auto until = Clock::now() + std::chrono::seconds(5);
    for (std::size_t peer = 0; peer < peers.size(); ++peer)
      if (peers[peer] && static_cast<int>(peer) != except) send_frame(peers[peer].get(), kind, payload, until);
  }

  void join_as_root() {
    auto listener =
        options.listening_socket >= 0 ? Socket(options.listening_socket) : listen_on(options.address, options.port);
    ::fcntl(listener.get(), F_SETFD, FD_CLOEXEC);
    const auto until = deadline();
    const auto ranks = static_cast<std::size_t>(options.ranks);
    hosts.assign(ranks, "");
    hosts[0] = identity;
    peers.resize(ranks);
    std::string straying;
    std::size_t present = 1;
    while (present < ranks) {
      if (!wait_for(listener.get(), POLLIN, until)) {
        std::vector<std::string> absent;
        for (std::size_t rank = 1; rank < ranks; ++rank)
          if (!peers[rank]) absent.push_back(fmt::format("rank {}", rank));
        throw lost(fmt::format("{} did not come within {:g} s", join(absent, ", "), options.timeout_seconds),
                   "see that rank's own output; SHARDFIT_TIMEOUT sets the wait");
      }
      Socket peer(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!peer) continue;
      make_nonblocking(peer.get());
      const auto hello = receive_frame(peer.get(), std::min(until, Clock::now() + std::chrono::seconds(10)));
      if (!hello || hello->kind != kHello) continue;  // not one of ours
      const auto lines = split(hello->payload, '\n');
      if (lines.size() != 5 || lines[0] != kMagic) continue;
      const auto rank = static_cast<std::size_t>(std::strtoul(lines[1].c_str(), nullptr, 10));
      if (rank < 1 || rank >= ranks || lines[2] != std::to_string(options.ranks) || peers[rank]) {
        send_frame(peer.get(), kRefused,
                   fmt::format("rank {} of {} does not belong to a run of {} ranks", lines[1], lines[2], ranks), until);
        continue;
      }
      if (lines[3] != options.agreement && straying.empty()) straying = fmt::format("rank {}", rank);
      hosts[rank] = lines[4];
      peers[rank] = std::move(peer);
      ++present;
    }
    if (!straying.empty()) {
      const auto message = fmt::format("{} has another job or plan than rank 0", straying);
      tell_all(kRefused, message);
      throw Error("ranks_out_of_step", "", message, "start all ranks with the same job, plan and --set",
                  kExitOutOfStep);
    }
    tell_all(kTable, join(hosts, "\n"));
  }

  Socket connect_to_root(Clock::time_point until) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    const auto port = std::to_string(options.port);
    std::string reason = "no answer";
    // A name may be unknown while a network comes up, not for longer.
    const auto name_until = std::min(until, Clock::now() + std::chrono::seconds(30));
    while (Clock::now() < until) {
      if (const int status = ::getaddrinfo(options.address.c_str(), port.c_str(), &hints, &found); status != 0) {
        reason = ::gai_strerror(status);
        if (Clock::now() > name_until) break;
      } else {
        for (auto* one = found; one; one = one->ai_next) {
          Socket peer(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
          if (peer && ::connect(peer.get(), one->ai_addr, one->ai_addrlen) == 0) {
            ::freeaddrinfo(found);
            make_nonblocking(peer.get());
            return peer;
          }
          reason = std::strerror(errno);
        }
        ::freeaddrinfo(found);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    throw lost(fmt::format("rank 0 at {}:{} cannot be reached: {}", options.address, options.port, reason),
               "check MASTER_ADDR and MASTER_PORT");
  }

  void join_as_other() {
    const auto until = deadline();
    peers.push_back(connect_to_root(until));
    const auto hello =
        fmt::format("{}\n{}\n{}\n{}\n{}", kMagic, options.rank, options.ranks, options.agreement, identity);
    send_frame(peers[0].get(), kHello, hello, until);
    // Rank 0 answers when the last rank has come: it may wait the whole time itself, so a little longer here.
    const auto answer = receive_frame(peers[0].get(), until + std::chrono::seconds(2));
    if (!answer) throw lost("rank 0 ended the connection before all ranks were there", "see rank 0's own output");
    if (answer->kind == kRefused) {
      throw Error("ranks_out_of_step", "", answer->payload, "start all ranks with the same job, plan and --set",
                  kExitOutOfStep);
    }
    hosts = split(answer->payload, '\n');
    if (answer->kind != kTable || hosts.size() != static_cast<std::size_t>(options.ranks))
      throw lost("rank 0 sent an answer that is not understood");
  }

  // Returns false when the peer will send no more.
  bool take_frame(std::size_t peer, const Frame& frame) {
    if (frame.kind == kText) {
      std::lock_guard lock(mutex);
      texts.push_back(frame.payload);
      news.notify_all();
    } else if (frame.kind == kFarewell) {
      std::lock_guard lock(mutex);
      left[peer] = true;
    } else if (frame.kind == kFailure) {
      const auto cut = frame.payload.find('\n');
      const int status = std::atoi(frame.payload.substr(0, cut).c_str());
      note_failure(cut == std::string::npos ? frame.payload : frame.payload.substr(cut + 1), status);
      if (options.rank == 0) tell_all(kFailure, frame.payload, static_cast<int>(peer));
    }
    return true;
  }

  void watch() {
    std::vector<bool> open(peers.size());
    for (std::size_t i = 0; i < peers.size(); ++i) open[i] = static_cast<bool>(peers[i]);
    for (;;) {
      std::vector<pollfd> list{{wake[0], POLLIN, 0}};
      std::vector<std::size_t> who{0};
      for (std::size_t i = 0; i < peers.size(); ++i)
        if (open[i]) {
          list.push_back({peers[i].get(), POLLIN, 0});
          who.push_back(i);
        }
      if (::poll(list.data(), list.size(), -1) < 0 && errno != EINTR) return;
      if (list[0].revents) return;
      for (std::size_t i = 1; i < list.size(); ++i) {
        if (!list[i].revents) continue;
        const auto peer = who[i];
        if (const auto frame = receive_frame(peers[peer].get(), Clock::now() + std::chrono::seconds(5))) {
          take_frame(peer, *frame);
          continue;
        }
        open[peer] = false;
        bool said_farewell;
        {
          std::lock_guard lock(mutex);
          said_farewell = left[peer];
        }
        if (said_farewell) continue;
        const auto message = fmt::format("rank {} is gone: its connection closed", peer);
        note_failure(message, kExitRankLost);
        if (options.rank == 0)
          tell_all(kFailure, fmt::format("{}\n{}", kExitRankLost, message), static_cast<int>(peer));
      }
    }
  }
};

World::World(const WorldOptions& options) : parts_(std::make_unique<Parts>()) {
  auto& parts = *parts_;
  parts.options = options;
  if (options.rank < 0 || options.rank >= options.ranks)
    throw Error("out_of_range", "RANK", fmt::format("rank {} of {}", options.rank, options.ranks),
                "ranks count from 0 to WORLD_SIZE - 1");
  if (options.ranks == 1) {
    parts.hosts = {parts.identity};
    return;
  }
  if (options.rank == 0) parts.join_as_root();
  else parts.join_as_other();
  parts.left.assign(parts.peers.size(), false);
  if (::pipe2(parts.wake, O_CLOEXEC) != 0) throw Error("pipe_failed", "", std::strerror(errno), "", kExitFailed);
  parts.watcher = std::thread([&parts] { parts.watch(); });
}

World::~World() {
  auto& parts = *parts_;
  if (!parts.watcher.joinable()) return;
  parts.tell_all(kFarewell, "");
  if (::write(parts.wake[1], "x", 1) == 1) parts.watcher.join();
  else parts.watcher.detach();
  for (int end : parts.wake) ::close(end);
}

int World::rank() const { return parts_->options.rank; }
int World::ranks() const { return parts_->options.ranks; }
double World::timeout_seconds() const { return parts_->options.timeout_seconds; }
const std::string& World::address() const { return parts_->options.address; }

bool World::one_host() const { return local_ranks() == ranks(); }

int World::local_rank() const {
  int place = 0;
  for (int rank = 0; rank < parts_->options.rank; ++rank)
    place += parts_->hosts[static_cast<std::size_t>(rank)] == parts_->identity;
  return place;
}

int World::local_ranks() const {
  int count = 0;
  for (const auto& host : parts_->hosts) count += host == parts_->identity;
  return count;
}

std::string World::share(const std::string& text) {
  auto& parts = *parts_;
  if (parts.options.ranks == 1) return text;
  if (parts.options.rank == 0) {
    parts.tell_all(kText, text);
    return text;
  }
  std::unique_lock lock(parts.mutex);
  if (!parts.news.wait_until(lock, parts.deadline(), [&] { return !parts.texts.empty() || parts.failed; }))
    throw lost(fmt::format("rank 0 sent nothing for {:g} s", parts.options.timeout_seconds), "see rank 0's own output");
  if (parts.texts.empty()) throw Error("rank_lost", "", parts.failure, "", parts.failure_status);
  auto first = std::move(parts.texts.front());
  parts.texts.pop_front();
  return first;
}

void World::announce_failure(const std::string& message, int exit_status) noexcept {
  try {
    if (parts_->options.ranks == 1 || parts_->failed) return;
    parts_->tell_all(kFailure,
                     fmt::format("{}\nrank {} failed: {}", exit_status, parts_->options.rank, message).substr(0, 4000));
  } catch (...) {
  }
}

bool World::failed() const noexcept { return parts_->failed; }

void World::check() const {
  if (!parts_->failed) return;
  std::lock_guard lock(parts_->mutex);
  throw Error("rank_lost", "", parts_->failure, "", parts_->failure_status);
}

void World::fail(const std::string& fallback, double seconds) const {
  {
    std::unique_lock lock(parts_->mutex);
    parts_->news.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return parts_->failed.load(); });
  }
  check();
  throw lost(fallback);
}

}  // namespace shardfit::comm
