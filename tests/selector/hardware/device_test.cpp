#include "selector/hardware/device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

#include "regions/base/error.hpp"

namespace shardfit::hardware {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string refusal(std::string_view name) {
  try {
    find_device(name, "/plan/gpu");
  } catch (const Error& e) {
    return e.code + " " + e.what();
  }
  return "found";
}

TEST(Device, EveryKeyNameAndAliasIsFoundAndMeansItsOwnDevice) {
  std::set<std::string> keys;
  for (const Device& d : devices()) {
    EXPECT_TRUE(keys.insert(d.key).second) << d.key << " twice";
    EXPECT_EQ(&find_device(d.key, ""), &d);
    EXPECT_EQ(&find_device(d.name, ""), &d) << d.name;
    for (const auto& alias : d.aliases) EXPECT_EQ(&find_device(alias, ""), &d) << alias;
    EXPECT_FALSE(d.source.empty()) << d.key;
    if (!d.is_cpu) {
      EXPECT_GT(d.memory_mib.value_or(0), 0) << d.key;
    }
  }
}

TEST(Device, NamesAreFoundInTheSpellingsOfSlurmAndVendors) {
  EXPECT_EQ(find_device("H100 SXM", "").key, "h100_sxm_80gb");
  EXPECT_EQ(find_device("NVIDIA_H100_80GB_HBM3", "").key, "h100_sxm_80gb");
  EXPECT_EQ(find_device("a100-sxm4-80gb", "").key, "a100_sxm_80gb");
  EXPECT_EQ(find_device("rtx-4090", "").key, "rtx_4090_24gb");
  EXPECT_EQ(find_device("l40s", "").key, "l40s_48gb");
}

TEST(Device, AnAmbiguousNameIsRefusedWithItsCandidates) {
  EXPECT_THAT(refusal("h100"), AllOf(HasSubstr("ambiguous_gpu"), HasSubstr("/plan/gpu"), HasSubstr("h100_sxm_80gb"),
                                     HasSubstr("h100_pcie_80gb"), HasSubstr("h100_nvl_94gb")));
  EXPECT_THAT(refusal("V100"), AllOf(HasSubstr("v100_sxm_16gb"), HasSubstr("v100_sxm_32gb")));
  EXPECT_EQ(try_find_device("a100"), nullptr);
}

TEST(Device, AnUnknownNameIsRefusedWithTheNearestOrTheWholeList) {
  EXPECT_THAT(refusal("h100_sxm_80g"), AllOf(HasSubstr("unknown_gpu"), HasSubstr("did you mean \"h100_sxm_80gb\"")));
  EXPECT_THAT(refusal("h101"), AllOf(HasSubstr("did you mean one of"), HasSubstr("h100_sxm_80gb")));
  EXPECT_THAT(refusal("quantum-annealer-3000"), AllOf(HasSubstr("unknown_gpu"), HasSubstr("mi300x_192gb")));
  EXPECT_THAT(refusal(""), HasSubstr("unknown_gpu"));
}

TEST(Device, TheCpuIsADeviceWithoutMemoryOfItsOwn) {
  const Device& cpu = find_device("cpu", "");
  EXPECT_TRUE(cpu.is_cpu);
  EXPECT_FALSE(cpu.memory_mib.has_value());
  EXPECT_EQ(cpu.memory_bytes(), 0);
}

TEST(Device, ReadsItsNumbers) {
  const Device& d = find_device("h100_sxm_80gb", "");
  EXPECT_EQ(d.memory_bytes(), 81559.0 * 1048576);
  EXPECT_EQ(d.compute_capability_number(), 9.0);
  EXPECT_EQ(d.bf16_tflops_dense, 989);
  EXPECT_EQ(d.pcie_gen, 5);
  EXPECT_EQ(d.nvlink_gbs_one_way, 450);
  EXPECT_EQ(find_device("gh200", "").c2c_gbs_one_way, 450);
  EXPECT_EQ(find_device("mi300x", "").compute_capability_number(), 0);
}

}  // namespace
}  // namespace shardfit::hardware
