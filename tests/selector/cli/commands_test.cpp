// The built `shardfit` as users run it: one line for each kind of bad input, exit status, records in and out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace shardfit {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kModel = SHARDFIT_SOURCE_DIR "/tests/truth/configs/meta-llama__Meta-Llama-3-8B.json";

struct Ran {
  int status = -1;
  std::string out, err;
};

class Commands : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("shardfit_cli_test_" + std::to_string(::getpid()) + "_" +
                                           ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  template <class T>
  requires std::is_same_v<T, Json> std::string write(const std::string& name, const T& value) {
    return write(name, value.dump());
  }

  Ran run(const std::string& arguments, const std::string& input = "") {
    const auto in = write("stdin", input), out = (folder_ / "stdout").string(), err = (folder_ / "stderr").string();
    const int status = std::system(("env -u SHARDFIT_CONF timeout 60 " SHARDFIT_BIN_DIR "/shardfit " + arguments +
                                    " <" + in + " >" + out + " 2>" + err)
                                       .c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text_of(out), text_of(err)};
  }
  static std::string text_of(const std::string& path) {
    std::ostringstream s;
    s << std::ifstream(path).rdbuf();
    return s.str();
  }

  // The job with one value replaced; "model" is absolute so that only what a test breaks is wrong.
  std::string job(const char* pointer = nullptr, Json value = {}) {
    Json j = {{"model", kModel},
              {"sequence_length", 4096},
              {"global_batch_sequences", 64},
              {"duration", {{"tokens", 2e8}}},
              {"framework", {{"name", "fsdp2"}}}};
    if (pointer) j[Json::json_pointer(pointer)] = std::move(value);
    return write("job.json", j);
  }
  std::string plan(const char* gpu = "h100_sxm_80gb", int micro = 1) {
    return write("plan.json", Json{{"gpu", gpu},
                                   {"gpus_per_node", 8},
                                   {"sharding", {{"stage", 3}}},
                                   {"micro_batch", micro},
                                   {"gradient_accumulation", 8},
                                   {"activation_checkpointing", "full"}});
  }
  std::string offers(const char* region = "verda/FIN-02", const char* gpu = "h100_sxm_80gb") {
    return write(
        "offers.json",
        Json::array(
            {{{"id", "x"},
              {"provider", "verda"},
              {"region", region},
              {"gpu", gpu},
              {"gpus_per_node", 8},
              {"min_gpus", 8},
              {"host", {{"ram_gib", 1480}}},
              {"price", {{"amount", 18.32}, {"currency", "USD"}, {"per", "node_hour"}, {"as_of", "2026-08-21"}}}}}));
  }

  // One line on standard error, nothing on standard output.
  void expect_one_line(const Ran& r, int status, const std::vector<std::string>& parts) {
    EXPECT_EQ(r.status, status) << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    EXPECT_THAT(r.err, StartsWith("shardfit: "));
    for (const auto& part : parts) EXPECT_THAT(r.err, HasSubstr(part));
  }

  fs::path folder_;
};

TEST_F(Commands, BadJobFilesGiveOneLineWithFileKeyValueAndRemedy) {
  for (const std::string command : {"estimate", "plan"}) {
    const std::string rest = command == "estimate" ? " --plan " + plan() : " --now 2026-08-22 --offers " + offers();
    const auto check = [&](const std::string& job_file, const std::vector<std::string>& parts) {
      expect_one_line(run(command + " " + job_file + rest), 2, parts);
    };
    check(folder_ / "absent.json", {"absent.json: "});
    check(write("job.json", std::string("{\"model\": \"x\",")), {"job.json: line 1", "correct the JSON"});
    check(write("job.json",
                Json{{"model", folder_ / "no_model"}, {"sequence_length", 4096}, {"global_batch_sequences", 64}}),
          {"job.json: /model: ", "no_model"});
    check(job("/sequence_lenght", 4096),
          {"job.json: /sequence_lenght: unknown key \"sequence_lenght\"; did you mean \"sequence_length\"?"});
    check(job("/sequence_length", -4096), {"job.json: /sequence_length: -4096 is out of range; it must be at least 1"});
    check(job("/global_batch_sequences", -1),
          {"job.json: /global_batch_sequences: -1 is out of range; it must be at least 1"});
    check(job("/framework/name", "fdsp2"),
          {"job.json: /framework/name: \"fdsp2\" is not known here; did you mean \"fsdp2\"?"});
    check(job("/sequence_length", "4096"),
          {"job.json: /sequence_length: a whole number is needed, not \"4096\"; write a whole number"});
    check(job("/method", {{"kind", "lora"}, {"rank", 8}, {"targets", {"q_pro"}}}),
          {"job.json: /method/targets/0: \"q_pro\" names no linear module", "q_proj"});
    check(job("/deadline", "tomorrow"), {"job.json: /deadline: ", "tomorrow", "write it as"});
    check(job("/max_cost", {{"amount", -5}, {"currency", "EUR"}}),
          {"job.json: /max_cost/amount: -5 is out of range; it must be at least 0"});
  }
}

TEST_F(Commands, MissingModelOrLengthIsNamed) {
  expect_one_line(run("estimate " + write("job.json", Json{{"sequence_length", 4096}}) + " --plan " + plan()), 2,
                  {"job.json: /model: is missing; add \"model\""});
  expect_one_line(run("estimate " + write("job.json", Json{{"model", kModel}}) + " --plan " + plan()), 2,
                  {"job.json: /sequence_length: is missing"});
  expect_one_line(
      run("plan " + write("job.json", Json{{"model", kModel}, {"sequence_length", 4096}}) + " --offers " + offers()), 2,
      {"job.json: /global_batch_sequences: is missing"});
}

TEST_F(Commands, UnknownGpuIsNamed) {
  expect_one_line(run("estimate " + job() + " --plan " + plan("h100_sxm_80g")), 2,
                  {"plan.json: /gpu: ", "h100_sxm_80g", "h100_sxm_80gb"});
  const auto ambiguous = run("estimate " + job() + " --plan " + plan("h100"));
  expect_one_line(ambiguous, 2, {"plan.json: /gpu: ", "h100_sxm_80gb", "h100_pcie_80gb"});
  const auto r = run("plan " + job() + " --json --now 2026-08-22 --offers " + offers("verda/FIN-02", "h1000"));
  EXPECT_EQ(r.status, 3);
  EXPECT_EQ(Json::parse(r.out)["rejected"][0]["rule"], "gpu_unknown");
}

TEST_F(Commands, BatchOfThePlanMustBeTheJobs) {
  expect_one_line(run("estimate " + job() + " --plan " + plan("h100_sxm_80gb", 3)), 2,
                  {"plan.json: /gradient_accumulation: ", "global_batch_sequences is 64"});
}

TEST_F(Commands, ImpossibleDeadlineAndPinWithoutOfferExitWithThree) {
  const auto late = run("plan " + job("/deadline", "60s") + " --now 2026-08-22 --offers " + offers());
  expect_one_line(late, 3, {"job.json: nothing satisfies the limits (x: deadline)", "deadline "});
  EXPECT_THAT(late.out, HasSubstr("the deadline is 60.0 s"));
  const auto pinned = run("plan " + job() + " --pin 'city(Berlin)' --now 2026-08-22 --offers " + offers());
  expect_one_line(pinned, 3, {"job.json: nothing satisfies the limits (x: city(Berlin))"});
  expect_one_line(run("plan " + job() + " --pin 'residence(EU)' --offers " + offers()), 2, {"residence"});
}

TEST_F(Commands, UsageErrorsExitWithTwo) {
  expect_one_line(run("estimate"), 2, {"estimate: a job file or --in is missing"});
  expect_one_line(run("plan " + job() + " --frobnicate"), 2, {"--frobnicate"});
  expect_one_line(run("estimat"), 2, {"unknown command \"estimat\"; did you mean \"estimate\"?"});
  EXPECT_EQ(run("plan --help").status, 0);
  for (const char* command :
       {"plan", "explain", "prices check", "prices list", "regions show", "policy publish", "ledger import"}) {
    EXPECT_THAT(run(command + std::string(" --version")).out, StartsWith("shardfit ")) << command;
    EXPECT_THAT(run(command + std::string(" --help")).out, HasSubstr("Usage: shardfit " + std::string(command)))
        << command;
  }
}

TEST_F(Commands, RecordsComeInOrderAndErrorsDoNotStopTheOthers) {
  const Json good_job = {
      {"model", kModel}, {"sequence_length", 4096}, {"global_batch_sequences", 64}, {"framework", {{"name", "fsdp2"}}}};
  const Json good_plan = {{"gpu", "h100_sxm_80gb"},
                          {"gpus_per_node", 8},
                          {"sharding", {{"stage", 3}}},
                          {"micro_batch", 1},
                          {"gradient_accumulation", 8}};
  Json bad_job = good_job;
  bad_job["model"] = "nowhere/config.json";
  const std::string lines =
      Json{{"id", "a"}, {"job", good_job}, {"plan", good_plan}, {"note", "further keys are ignored"}}.dump() +
      "\n{not json\n\n" + Json{{"id", "c"}, {"job", bad_job}, {"plan", good_plan}}.dump() + "\n" +
      Json{{"id", 4}, {"job", good_job}, {"plan", good_plan}}.dump() + "\n";
  const auto r = run("estimate --in -", lines);
  EXPECT_EQ(r.status, 1);
  std::vector<Json> out;
  std::istringstream stream(r.out);
  for (std::string line; std::getline(stream, line);) out.push_back(Json::parse(line));
  ASSERT_EQ(out.size(), 4u);
  EXPECT_EQ(out[0]["id"], "a");
  EXPECT_GT(out[0]["memory"]["device_peak"].get<double>(), 1e9);
  std::int64_t sum = 0;
  for (const auto& term : out[0]["memory"]["terms"]) sum += term["bytes"].get<std::int64_t>();
  EXPECT_EQ(sum, out[0]["memory"]["device_peak"].get<std::int64_t>());
  EXPECT_EQ(out[1]["error"]["code"], "bad_json");
  EXPECT_TRUE(out[1]["id"].is_null());
  EXPECT_EQ(out[2]["error"]["where"], "/job/model");
  EXPECT_THAT(out[2]["error"]["message"].get<std::string>(), HasSubstr("nowhere"));
  EXPECT_EQ(out[3]["id"], 4);
}

TEST_F(Commands, PlanRecordsAnswerNoneWithStatusZero) {
  const Json job = {{"model", kModel},
                    {"sequence_length", 4096},
                    {"global_batch_sequences", 64},
                    {"duration", {{"tokens", 2e8}}},
                    {"framework", {{"name", "fsdp2"}}}};
  const Json offer = Json::parse(text_of(offers()))[0];
  const auto line = [&](const char* id, Json limits) {
    return Json{{"id", id}, {"job", job}, {"offers", {offer}}, {"limits", limits}, {"now", "2026-08-22T00:00:00Z"}}
               .dump() +
           "\n";
  };
  const auto r = run("plan --in -", line("a", {{"currency", "EUR"}}) + line("b", {{"pins", {"residency(CH)"}}}));
  EXPECT_EQ(r.status, 0);
  std::istringstream stream(r.out);
  std::string first, second;
  std::getline(stream, first);
  std::getline(stream, second);
  const Json a = Json::parse(first), b = Json::parse(second);
  EXPECT_EQ(a["decision"], "chosen");
  EXPECT_EQ(a["chosen"]["cost"]["currency"], "EUR");
  EXPECT_EQ(b["decision"], "none");
  EXPECT_EQ(b["rejected"][0]["rule"], "residency(CH)");
}

// Of two limits on the cost the stricter counts, in whatever currencies they are.
TEST_F(Commands, TheStricterMaxCostCounts) {
  const Json job = {{"model", kModel},
                    {"sequence_length", 4096},
                    {"global_batch_sequences", 64},
                    {"duration", {{"tokens", 2e8}}},
                    {"framework", {{"name", "fsdp2"}}}};
  const Json offer = Json::parse(text_of(offers()))[0];
  const auto decision = [&](double of_line, const std::string& of_command) {
    const Json line = {{"id", "a"},
                       {"job", job},
                       {"offers", {offer}},
                       {"limits", {{"max_cost", {{"amount", of_line}, {"currency", "EUR"}}}}},
                       {"now", "2026-08-22T00:00:00Z"}};
    const auto r = run("plan --in - --max-cost " + of_command, line.dump() + "\n");
    EXPECT_EQ(r.status, 0) << r.err;
    return Json::parse(r.out)["decision"].get<std::string>();
  };
  EXPECT_EQ(decision(1e6, "1000000EUR"), "chosen");
  EXPECT_EQ(decision(1e6, "0.01EUR"), "none");
  EXPECT_EQ(decision(1e6, "0.01USD"), "none");
  EXPECT_EQ(decision(0.01, "1000000USD"), "none");
}

TEST_F(Commands, ExplainDrawsTheStep) {
  const auto svg = (folder_ / "step.svg").string();
  const auto r = run("explain " + job() + " --plan " + plan() + " --svg " + svg);
  EXPECT_EQ(r.status, 0) << r.err;
  for (const char* part : {"GiB", "'forward", "'backward", "optimizer states", "capacity 79.", "Alive at the peak"})
    EXPECT_THAT(r.out, HasSubstr(part));
  const auto drawn = text_of(svg);
  EXPECT_THAT(drawn, StartsWith("<svg "));
  EXPECT_NE(drawn.find("stroke-dasharray"), std::string::npos);
  EXPECT_NE(drawn.find("</svg>"), std::string::npos);
  const auto other = write("other.json", Json{{"gpu", "h100_sxm_80gb"},
                                              {"gpus_per_node", 8},
                                              {"sharding", {{"stage", 3}}},
                                              {"micro_batch", 8},
                                              {"activation_checkpointing", "full"}});
  const auto both = run("explain " + job() + " --plan " + plan() + " --compare " + other);
  EXPECT_EQ(both.status, 0) << both.err;
  EXPECT_THAT(both.out, HasSubstr("B - A"));
  const auto record = run("explain " + job() + " --plan " + plan() + " --json");
  EXPECT_EQ(record.status, 0) << record.err;
  const Json j = Json::parse(record.out);
  std::int64_t highest = 0;
  for (const auto& moment : j["timeline"]) highest = std::max(highest, moment["allocated"].get<std::int64_t>());
  EXPECT_NEAR(static_cast<double>(highest), j["memory"]["allocated_peak"].get<double>(),
              0.02 * static_cast<double>(highest));
}

}  // namespace
}  // namespace shardfit
