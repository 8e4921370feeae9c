// GPU names of feeds and Slurm against the shipped hardware table.
#include "pricing/gpu_types.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "regions/base/json.hpp"

namespace shardfit::pricing {
namespace {

const GpuTypes& types() {
  static const GpuTypes t =
      GpuTypes::parse(read_json_file(SHARDFIT_SOURCE_DIR "/selector/hardware/data/hardware.json"));
  return t;
}

std::vector<std::string> keys(const char* name, std::optional<double> gb = {}) {
  std::vector<std::string> out;
  for (const auto* t : types().candidates(name, gb)) out.push_back(t->key);
  return out;
}

TEST(GpuTypes, OneTypeAName) {
  using testing::ElementsAre;
  EXPECT_THAT(keys("h100_sxm_80gb"), ElementsAre("h100_sxm_80gb"));
  EXPECT_THAT(keys("H100 SXM"), ElementsAre("h100_sxm_80gb"));
  EXPECT_THAT(keys("A100 PCIe 80GB"), ElementsAre("a100_pcie_80gb"));
  EXPECT_THAT(keys("A100 SXM 40GB"), ElementsAre("a100_sxm_40gb"));
  EXPECT_THAT(keys("RTX_4090"), ElementsAre("rtx_4090_24gb"));
  EXPECT_THAT(keys("RTX4090"), ElementsAre("rtx_4090_24gb"));
  EXPECT_THAT(keys("RTX 6000 Ada"), ElementsAre("rtx_6000_ada_48gb"));
  EXPECT_THAT(keys("L40S"), ElementsAre("l40s_48gb"));
  EXPECT_THAT(keys("L40"), ElementsAre("l40_48gb"));
  EXPECT_THAT(keys("L4"), ElementsAre("l4_24gb"));
  EXPECT_THAT(keys("MI300X"), ElementsAre("mi300x_192gb"));
  EXPECT_THAT(keys("B200"), ElementsAre("b200_sxm_180gb"));
  EXPECT_THAT(keys("H200 SXM"), ElementsAre("h200_sxm_141gb"));
  EXPECT_THAT(keys("A10"), ElementsAre("a10_24gb"));
  EXPECT_THAT(keys("A10G"), ElementsAre("a10g_24gb"));
}

TEST(GpuTypes, AmbiguousNamesGiveAllTheyMayMean) {
  using testing::Contains;
  using testing::UnorderedElementsAre;
  EXPECT_THAT(keys("A100-80GB"), UnorderedElementsAre("a100_sxm_80gb", "a100_pcie_80gb"));
  EXPECT_THAT(keys("V100-32GB"), testing::Each(testing::HasSubstr("32gb")));
  EXPECT_THAT(keys("H100"), Contains("h100_sxm_80gb"));
  EXPECT_THAT(keys("H100"), Contains("h100_pcie_80gb"));
  EXPECT_THAT(keys("H100", 94), UnorderedElementsAre("h100_nvl_94gb"));
  EXPECT_THAT(keys("a100", 40), UnorderedElementsAre("a100_sxm_40gb", "a100_pcie_40gb"));
}

TEST(GpuTypes, WhatIsNoGpuHasNone) {
  for (const char* name : {"", "tpu-v6e-8", "K80", "Gaudi", "Trainium2", "none", "80GB", "GPU"})
    EXPECT_TRUE(keys(name).empty()) << name;
}

// Every GPU of the shipped price snapshot is in the table.
TEST(GpuTypes, NamesOfTheSnapshot) {
  for (const char* name : {"H100 SXM",     "H200 SXM",  "L40S",           "A100 PCIe 80GB",
                           "B200 SXM",     "L4",        "H100 PCIe",      "A100 SXM 80GB",
                           "V100 32GB",    "RTX A6000", "V100 16GB",      "A100 SXM 40GB",
                           "RTX PRO 6000", "A10",       "RTX 4090",       "B300 SXM",
                           "T4",           "H100 NVL",  "A10G",           "MI300X",
                           "RTX 5090",     "A40",       "RTX A5000",      "RTX 6000 Ada",
                           "P100",         "L40",       "GH200",          "RTX A4000",
                           "GB200",        "MI355X",    "RTX 3090",       "Quadro RTX 6000",
                           "A30",          "A100 80GB", "A100 PCIe 40GB", "RTX 3080 Ti",
                           "A100 40GB"})
    EXPECT_FALSE(keys(name).empty()) << name;
}

}  // namespace
}  // namespace shardfit::pricing
