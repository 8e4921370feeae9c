// Which offers may be chosen at all: pins, who may submit, the GPU asked for, and whether the price can be used.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pricing/cost.hpp"
#include "pricing/offers.hpp"
#include "regions/pins.hpp"
#include "selector/decide/decide.hpp"

namespace shardfit::hardware {
struct Device;
}

namespace shardfit::decide {

struct Standing {
  const pricing::Offer* offer = nullptr;
  const hardware::Device* device = nullptr;  // nullptr: not a device of the table
  std::unique_ptr<pricing::Pricer> pricer;   // nullptr where the price cannot be used
  std::string rule, reason;                  // why it may not be chosen; "" = it may
  std::string remedy;                        // for rules where the nearest relaxation is known without a search
  std::vector<std::string> flags;            // "pins rest on listed evidence: country"
  bool may_be_chosen() const { return rule.empty(); }
  bool can_be_priced() const { return device && pricer; }  // a rejected one too: what it would cost
};

// Throws Error{duplicate} where two offers have one id.
std::vector<Standing> standings(const job::Job& job, const std::vector<pricing::Offer>& offers,
                                const std::vector<regions::Atom>& pins, const std::string& currency, std::int64_t now,
                                const regions::Catalogue& catalogue, const pricing::Rates& rates,
                                const Options& options);

}  // namespace shardfit::decide
