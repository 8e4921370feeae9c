#include "selector/job/job.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "regions/base/error.hpp"

namespace shardfit::job {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

Json small() { return Json::parse(R"({"model": "m/", "sequence_length": 512, "global_batch_sequences": 8})"); }

std::string error_of(const Json& job) {
  try {
    parse_job(job, "");
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(JobFile, DefaultsAreThoseOfTheFormatPage) {
  const Job job = parse_job(small(), "/data/jobs");
  EXPECT_EQ(job.model_path(), "/data/jobs/m/");
  EXPECT_EQ(job.method.kind, MethodKind::kFull);
  EXPECT_EQ(job.framework.name, "shardfit");
  EXPECT_EQ(job.precision.name, "bf16-mixed");
  EXPECT_EQ(job.precision.parameters, DType::kFp32);
  EXPECT_EQ(job.precision.compute, DType::kBf16);
  EXPECT_EQ(job.train.max_grad_norm, 1.0);
  EXPECT_EQ(job.train.lr_scheduler_type, "cosine");
  EXPECT_FALSE(job.attention.has_value());
  EXPECT_FALSE(job.fused_kernels.has_value());
}

TEST(JobFile, MixedPrecisionFollowsTheFramework) {
  Json j = small();
  j["framework"] = {{"name", "deepspeed"}};
  j["precision"] = "fp16-mixed";
  const Job job = parse_job(j, "");
  EXPECT_EQ(job.precision.parameters, DType::kFp16);
  EXPECT_EQ(job.precision.master, DType::kFp32);
}

TEST(JobFile, CanonicalFormReadsBackAsItself) {
  for (
      const char* text :
      {R"({"model":"m","sequence_length":8192,"global_batch_tokens":524288,"duration":{"tokens":2e9}})",
       R"({"model":"/abs/config.json","sequence_length":1,"duration":{"epochs":0.5},"data":{"train":["a","b"],"format":"jsonl","packing":false},
               "method":{"kind":"qlora","rank":64,"targets":"all-linear","quant_storage":"bf16","double_quantization":true}})",
       R"x({"model":"m","sequence_length":128,"decoder_sequence_length":64,"precision":{"parameters":"bf16","master":"none","compute":"fp8","fp8_recipe":"tensorwise","autocast":false},
               "loss":{"kind":"chunked","chunks":8,"over":"logits"},"fused_kernels":[],"attention":"flash2","compile":"block+loss","optimizer":{"name":"lion","states":"int8","paged":true},
               "locations":{"data":"DE"},"deadline":"12h","max_cost":"500EUR","pins":["residency(EU|CH)"],"train":{"save_at":[7,13],"dropout":0.0,"learning_rate":1e-4}})x",
       R"({"model":"m","sequence_length":128,"method":{"kind":"partial","trainable":["model.norm"]},"framework":{"name":"other","label":"LoHan"}})",
       R"({"pins":["sovereign"]})"}) {
    const Job job = parse_job(Json::parse(text), "");
    const auto once = to_json(job).dump();
    EXPECT_EQ(to_json(parse_job(Json::parse(once), "")).dump(), once);
  }
}

TEST(JobFile, EveryMistakeNamesItsPlaceAndRemedy) {
  struct Case {
    const char* pointer;
    const char* value;
    const char* expected;
  };
  for (const Case& c : {
           Case{"/sequence_length", "-4096", "/sequence_length: -4096 is out of range; it must be at least 1"},
           Case{"/sequence_length", "1e18", "/sequence_length: "},
           Case{"/sequence_length", "\"4096\"", "a whole number is needed, not \"4096\""},
           Case{"/global_batch_sequences", "0", "at least 1"},
           Case{"/secuence_length", "1", "unknown key \"secuence_length\"; did you mean \"sequence_length\"?"},
           Case{"/framework/name", "\"fsdp3\"", "did you mean \"fsdp"},
           Case{"/framework/name", "\"xyz\"", "Known: shardfit, fsdp2, fsdp1, deepspeed, ddp, megatron, other"},
           Case{"/precision", "\"bf16mixed\"", "did you mean \"bf16-mixed\"?"},
           Case{"/precision/parameters", "\"fp12\"", "/precision/parameters: "},
           Case{"/method/rank", "16", "/method/kind: is missing"},
           Case{"/method", R"({"kind":"lora"})", "/method/rank: is missing"},
           Case{"/method", R"({"kind":"lora","rank":-1})", "/method/rank: -1 is out of range"},
           Case{"/duration", R"({"tokens":1000,"steps":5})", "keep one of tokens, steps, epochs"},
           Case{"/duration", "{}", "keep one of tokens, steps, epochs"},
           Case{"/duration/tokens", "-5", "/duration/tokens: -5 is out of range"},
           Case{"/deadline", "\"soon\"", "duration \"soon\" cannot be read"},
           Case{"/deadline", "0", "it must be above 0"},
           Case{"/max_cost", "\"500\"", "ISO 4217"},
           Case{"/max_cost", R"({"amount":-1,"currency":"EUR"})", "/max_cost/amount: "},
           Case{"/train/adam_beta1", "1.0", "below 1"},
           Case{"/train/learning_rate", "0", "above 0"},
           Case{"/train/save_at", "[0]", "/train/save_at/0"},
           Case{"/loss", R"({"kind":"chunked","chunks":8,"chunk_tokens":128})", "keep one of them"},
           Case{"/fused_kernels", R"(["swigl"])", "did you mean \"swiglu\"?"},
           Case{"/global_batch_tokens", "4096", "keep one of them"},
           Case{"/model", "\" \"", "/model: is empty"},
       }) {
    Json job = small();
    job[Json::json_pointer(c.pointer)] = Json::parse(c.value);
    EXPECT_THAT(error_of(job), HasSubstr(c.expected)) << c.pointer << " = " << c.value;
  }
}

}  // namespace
}  // namespace shardfit::job
