#include "runtime/probe/command.hpp"

#include <ATen/Parallel.h>

#include <charconv>
#include <cstdio>
#include <exception>
#include <optional>

#include "regions/base/error.hpp"
#include "runtime/comm/world.hpp"
#include "runtime/probe/rates.hpp"
#include "runtime/train/connect.hpp"
#include "runtime/train/environment.hpp"
#include "runtime/train/launcher.hpp"

namespace shardfit::probe {
namespace {

struct Request {
  int ranks = 1;
  RatesOptions rates;
  bool threads_stated = false;
};

int whole(const std::string& option, const std::string& text, int most) {
  int value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc() || end != text.data() + text.size() || value < 1 || value > most)
    throw Error("out_of_range", option, "\"" + text + "\" is not a whole number from 1 to " + std::to_string(most));
  return value;
}

Request read(const std::vector<std::string>& arguments) {
  Request request;
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    const auto value = [&]() -> const std::string& {
      if (i + 1 >= arguments.size()) throw Error("usage", word, "needs a value");
      return arguments[++i];
    };
    if (word == "--probe") {
      if (const std::string& what = value(); what != "rates") throw Error("unknown_word", "--probe", "no probe \"" + what + "\"", "known: rates");
    } else if (word == "--ranks") {
      request.ranks = whole(word, value(), 1024);
    } else if (word == "--threads") {
      request.rates.threads = whole(word, value(), 4096);
      request.threads_stated = true;
    } else if (word == "--type") {
      const std::string& type = value();
      if (type != "fp32" && type != "bf16") throw Error("unknown_word", word, "no type \"" + type + "\"", "known: fp32, bf16");
      request.rates.type = type == "fp32" ? kernels::Type::kFp32 : kernels::Type::kBf16;
    } else if (word == "--quick") {
      request.rates.quick = true;
    } else if (word == "--full") {
      request.rates.quick = false;
    } else {
      throw Error("usage", word, "unknown option", "--probe rates [--ranks N] [--threads T] [--type fp32|bf16] [--quick|--full]");
    }
  }
  return request;
}

}  // namespace

int probe_command(const std::vector<std::string>& arguments) {
  Request request = read(arguments);
  const train::Environment environment = train::read_environment();
  if (!environment.given && request.ranks > 1) return train::launch_ranks(request.ranks, arguments);
  std::optional<comm::World> world;
  try {
    // What the command line says is what all ranks must agree on.
    std::string agreement;
    for (std::size_t i = 1; i < arguments.size(); ++i) agreement += arguments[i] + "\n";
    world.emplace(comm::WorldOptions{environment.rank, environment.ranks, environment.address, environment.port, agreement,
                                     comm::timeout_from_environment(), environment.listening_socket});
    const auto collective = train::connect(*world);
    if (!request.threads_stated) request.rates.threads = train::threads_for(world->local_ranks());
    at::set_num_threads(request.rates.threads);
    const std::string record = measure_rates(*collective, request.rates);
    collective->barrier();
    if (!record.empty()) std::puts(record.c_str());
    return kExitDone;
  } catch (const Error& error) {
    if (world) world->announce_failure(error.what(), error.exit_status);
    throw;
  } catch (const std::exception& error) {
    if (world) world->announce_failure(error.what(), kExitFailed);
    throw Error("probe_failed", "", error.what(), "", kExitFailed);
  }
}

}  // namespace shardfit::probe
