#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plugin/inventory/slurm_inventory.hpp"
#include "regions/base/error.hpp"

namespace shardfit::inventory {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Lines as scontrol -a -o of Slurm 22.05 prints them, shortened where nothing is read.
const char* const kText = R"(scontrol: show node
NodeName=h1 Arch=x86_64 CoresPerSocket=48  CPUAlloc=0 CPUEfctv=188 CPUTot=192 CPULoad=0.71 AvailableFeatures=fin3,nvlink ActiveFeatures=fin3 Gres=gpu:h100:8(S:0-1),shard:h100:32 NodeAddr=127.0.0.1 OS=Linux 6.1 #1 SMP PREEMPT State Gres=odd RealMemory=1500000 AllocMem=0 Sockets=2 Boards=1 MemSpecLimit=2048 State=MIXED ThreadsPerCore=2 TmpDisk=0 Weight=1 Partitions=h100,all BootTime=None CfgTRES=cpu=188,mem=1T,billing=1
NodeName=h2 CPUTot=64 AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:h100:4,gpu:a100:2 RealMemory=1000 State=IDLE+DRAIN ThreadsPerCore=1 Partitions=h100 Reason=bad fan, see State=UP note [root@2026-01-01T00:00:00]
scontrol: scontrol: NodeName=c1 CPUEfctv=4 CPUTot=4 Gres=(null) RealMemory=2000 State=IDLE+RESERVED ThreadsPerCore=1 Partitions=cpu
NodeName=c2 CPUEfctv=4 CPUTot=4 Gres=gpu:2 RealMemory=2000 State=IDLE* ThreadsPerCore=1 Partitions=cpu
PartitionName=h100 AllowGroups=ml,ops AllowAccounts=clinic,lab AllowQos=ALL AllocNodes=ALL Default=NO QoS=N/A MaxNodes=4 MaxTime=1-12:00:00 MinNodes=0 Nodes=h[1-2] RootOnly=NO ReqResv=NO State=UP TotalCPUs=256
PartitionName=cpu AllowGroups=ALL DenyAccounts=guests DenyQos=low Default=YES MaxNodes=UNLIMITED MaxTime=UNLIMITED Nodes=c[1-2] RootOnly=NO ReqResv=NO State=DRAIN
PartitionName=all AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL Default=NO MaxNodes=UNLIMITED MaxTime=30:00 Nodes=h1 RootOnly=YES ReqResv=NO State=UP
ReservationName=maint StartTime=2026-01-01T00:00:00 Nodes=c1 NodeCnt=1 Users=root State=ACTIVE
)";

TEST(Scontrol, ReadsNodes) {
  const auto i = parse_scontrol(kText, {.cluster = "c1"});
  EXPECT_EQ(i.cluster, "c1");
  ASSERT_EQ(i.nodes.size(), 4u);
  const auto& h1 = i.nodes[0];
  EXPECT_EQ(h1.name, "h1");
  EXPECT_EQ(h1.cpus, 188);
  EXPECT_EQ(h1.cores, 94);
  EXPECT_EQ(h1.memory_mib, 1500000 - 2048);
  EXPECT_THAT(h1.features, ElementsAre("fin3"));
  ASSERT_EQ(h1.gpus.size(), 1u);
  EXPECT_EQ(h1.gpus[0].type, "h100");
  EXPECT_EQ(h1.gpus[0].count, 8);
  EXPECT_EQ(h1.state, "");
  const auto& h2 = i.nodes[1];
  EXPECT_EQ(h2.gpus.size(), 2u);
  EXPECT_EQ(h2.state, "drained");
  EXPECT_THAT(h2.reason, HasSubstr("bad fan, see"));
  EXPECT_EQ(i.nodes[2].state, "reserved");
  EXPECT_TRUE(i.nodes[2].gpus.empty());
  EXPECT_EQ(i.nodes[3].state, "not responding");
  EXPECT_EQ(i.nodes[3].gpus[0].type, "");
  EXPECT_EQ(i.nodes[3].gpus[0].count, 2);
}

TEST(Scontrol, ReadsPartitions) {
  const auto i = parse_scontrol(kText, {});
  ASSERT_EQ(i.partitions.size(), 3u);
  const auto& h100 = i.partitions[0];
  EXPECT_TRUE(h100.up);
  EXPECT_FALSE(h100.is_default);
  EXPECT_EQ(h100.max_seconds, 129600);
  EXPECT_EQ(h100.max_nodes, 4);
  EXPECT_THAT(h100.allow_accounts, ElementsAre("clinic", "lab"));
  EXPECT_THAT(h100.allow_groups, ElementsAre("ml", "ops"));
  EXPECT_TRUE(h100.allow_qos.empty());
  EXPECT_THAT(h100.nodes, ElementsAre("h1", "h2"));
  const auto& cpu = i.partitions[1];
  EXPECT_FALSE(cpu.up);  // DRAIN takes no new jobs
  EXPECT_TRUE(cpu.is_default);
  EXPECT_FALSE(cpu.max_seconds.has_value());
  EXPECT_FALSE(cpu.max_nodes.has_value());
  EXPECT_THAT(cpu.deny_accounts, ElementsAre("guests"));
  EXPECT_THAT(cpu.deny_qos, ElementsAre("low"));
  EXPECT_EQ(i.partitions[2].max_seconds, 1800);
  EXPECT_FALSE(i.partitions[2].up);  // root only
}

TEST(Scontrol, AReservationOpensItsNodesAndClosesTheOthers) {
  const auto i = parse_scontrol(kText, {.reservation = "maint"});
  EXPECT_EQ(i.nodes[2].state, "");
  EXPECT_EQ(i.nodes[0].state, "outside reservation maint");
  try {
    parse_scontrol(kText, {.reservation = "mainz"});
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("maint"));
    EXPECT_EQ(e.exit_status, kExitBadInput);
  }
}

TEST(Scontrol, SurvivesAnyText) {
  for (const char* text : {"", "NodeName=", "NodeName=x Gres=gpu:::", "NodeName=x Gres=gpu:h100:99999999999999999999",
                           "PartitionName=p MaxTime=-:::", "ReservationName=r Nodes=n[1-",
                           "NodeName=x State= CPUTot=abc", "\n\n scontrol: scontrol: "}) {
    EXPECT_NO_THROW(parse_scontrol(text, {})) << text;
  }
}

TEST(NodeState, IsUsableOnlyWhenItTakesJobs) {
  for (const char* state : {"IDLE", "MIXED", "ALLOCATED", "IDLE+PLANNED", "IDLE+CLOUD+POWERED_DOWN", "MIXED-", "IDLE~",
                            "COMPLETING", "ALLOCATED+COMPLETING"})
    EXPECT_EQ(why_not_usable(state), "") << state;
  EXPECT_EQ(why_not_usable("DOWN*"), "down");
  EXPECT_EQ(why_not_usable("IDLE*+CLOUD"), "not responding");
  EXPECT_EQ(why_not_usable("MIXED+DRAIN"), "drained");
  EXPECT_EQ(why_not_usable("IDLE+MAINTENANCE+RESERVED"), "in maintenance");
  EXPECT_EQ(why_not_usable("FUTURE"), "future");
  EXPECT_EQ(why_not_usable("IDLE+FAIL"), "failed");
  EXPECT_EQ(why_not_usable("ALLOCATED+RESERVED"), "reserved");
}

TEST(Hostlist, Expands) {
  EXPECT_THAT(expand_hostlist("h[1-3,7],x"), ElementsAre("h1", "h2", "h3", "h7", "x"));
  EXPECT_THAT(expand_hostlist("n[08-10]"), ElementsAre("n08", "n09", "n10"));
  EXPECT_THAT(expand_hostlist("r[1-2]n[1-2]"), ElementsAre("r1n1", "r1n2", "r2n1", "r2n2"));
  EXPECT_THAT(expand_hostlist("a-[1]"), ElementsAre("a-1"));
  EXPECT_TRUE(expand_hostlist("(null)").empty());
  for (const char* bad : {"n[1-", "n1]", "n[a-b]", "n[3-1]", "n[1-999999999]", "n[1-99999]m[1-99999]", "n[]"})
    EXPECT_THROW(expand_hostlist(bad), Error) << bad;
}

}  // namespace
}  // namespace shardfit::inventory
