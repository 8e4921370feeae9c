// The published decisions (decisions_visible.jsonl: measured runs at real prices, and pin checks; each row names its sources), judged
// as score_decisions.py judges them. The score may not get worse.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "regions/base/error.hpp"
#include "regions/base/time.hpp"
#include "selector/decide/decide.hpp"
#include "selector/search/model_cache.hpp"

namespace shardfit::decide {
namespace {

using Json = nlohmann::json;
const std::string kFolder = SHARDFIT_SOURCE_DIR "/tests/truth";

struct Judged {
  bool right = false;
  double regret = -1;  // below 0: no measured costs
};

Judged judge(const Json& c, const Decision& d) {
  const Json& expected = c["expected"];
  const std::string chosen = d.chosen ? d.chosen->offer : "";
  if (expected["decision"] == "none") {
    bool named = !expected.contains("rule");
    for (const auto& r : d.rejected) named |= expected.contains("rule") && expected["rule"] == r.rule;
    return {d.decision == "none" && named};
  }
  if (!d.chosen) return {};
  Judged out{true};
  const auto contains = [&](const Json& list) { return list.is_string() ? list == chosen : std::find(list.begin(), list.end(), chosen) != list.end(); };
  if (expected.contains("not")) out.right &= !contains(expected["not"]);
  if (expected.contains("passing")) out.right &= contains(expected["passing"]);
  const bool has_margin = expected.contains("margin") && expected["margin"].is_number();
  const double margin = has_margin ? expected["margin"].get<double>() : 1;
  const std::string winner = expected.value("winner", "");
  std::set<std::string> tied(d.tied_with.begin(), d.tied_with.end());
  tied.insert(chosen);
  if (expected["decision"] == "tie") out.right &= contains(expected["between"]);
  else if (!winner.empty()) {
    out.right &= chosen == winner || (has_margin && margin <= 0.05) || (d.decision == "tie" && tied.contains(winner) && has_margin && margin <= 0.15);
    if (has_margin && margin > 0.15) out.right &= d.decision == "chosen";
  }
  double best = -1, mine = -1;
  for (const auto& m : c.value("measured", Json::array())) {
    if (!m.contains("cost")) continue;
    const double cost = m["cost"];
    if (best < 0 || cost < best) best = cost;
    if (m["offer"] == chosen) mine = cost;
  }
  if (mine > 0) out.regret = mine / best - 1;
  return out;
}

TEST(PublishedDecisions, ScoreStaysWhereItWas) {
  std::ifstream in(kFolder + "/decisions_visible.jsonl");
  ASSERT_TRUE(in);
  search::ModelCache models;
  const auto catalogue = regions::Catalogue::shipped();
  int cases = 0, right = 0, with_regret = 0;
  double regret = 0;
  std::string line, wrong;
  while (std::getline(in, line)) {
    const Json c = Json::parse(line);
    std::vector<pricing::Offer> offers;
    for (const auto& o : c["offers"]) offers.push_back(pricing::parse_offer(o, "/offers"));
    Options options;
    options.catalogue = &catalogue;
    options.models = &models;
    const auto decision = decide(job::parse_job(c["job"], kFolder, "/job"), offers, parse_limits(c["limits"], "/limits"), *parse_time(c["now"].get<std::string>()), options);
    const auto judged = judge(c, decision);
    ++cases;
    right += judged.right;
    if (!judged.right) wrong += c["id"].get<std::string>() + " ";
    if (judged.regret >= 0) regret += judged.regret, ++with_regret;
  }
  EXPECT_EQ(cases, 27);
  EXPECT_GE(right, 26) << "wrong: " << wrong;
  ASSERT_GE(with_regret, 18);
  EXPECT_LE(regret / with_regret, 0.01);
}

}  // namespace
}  // namespace shardfit::decide
