// Names and shapes against transformers' own classes (golden/names.json, made by golden/make_names.py).
#include <gtest/gtest.h>
#include <map>
#include <nlohmann/json.hpp>

#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "selector/model/model.hpp"

namespace shardfit::model {
namespace {

TEST(Names, EqualThoseOfTransformers) {
  const auto golden = nlohmann::json::parse(read_file(std::string(SHARDFIT_SOURCE_DIR) + "/tests/selector/model/golden/names.json"));
  ASSERT_GE(golden.size(), 38u);
  for (const auto& [name, entry] : golden.items()) {
    SCOPED_TRACE(name);
    const Model m = parse_model(entry["config"].dump(), name);
    std::map<std::string, std::vector<std::int64_t>> mine, theirs;
    for (const auto& p : all_parameters(m)) mine[p.name] = p.shape;
    for (const auto& [parameter, shape] : entry["parameters"].items()) theirs[parameter] = shape.get<std::vector<std::int64_t>>();
    for (const auto& [parameter, shape] : theirs) {
      EXPECT_TRUE(mine.contains(parameter)) << "without " << parameter;
      if (mine.contains(parameter)) {
        EXPECT_EQ(mine[parameter], shape) << parameter;
      }
    }
    for (const auto& [parameter, shape] : mine) EXPECT_TRUE(theirs.contains(parameter)) << parameter << " is not there";
  }
}

}  // namespace
}  // namespace shardfit::model
