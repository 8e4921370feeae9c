// A model as the predictor and the runtime see it: blocks of operators over named tensors, with every parameter's exact shape.
// Built from a Hugging Face config.json by one short file a family (selector/model/families/), through Builder (builder.hpp).
//
// What an operator saves for backward or allocates while it runs depends on the framework, kernels and precision: that is
// selector/memory's business. What it computes (FLOPs, bytes) at which rate is selector/time's. Here stand only the mathematics:
// which tensors go in and out, how wide they are a token, and which parameters are used.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace shardfit::model {

struct Parameter {
  std::string name;                  // as in Hugging Face, relative to the block: "self_attn.q_proj.weight"
  std::string module;                // "self_attn.q_proj"
  std::vector<std::int64_t> shape;
  enum class Kind { kMatrix, kEmbedding, kNorm, kBias, kExpert, kRouter, kOther } kind = Kind::kMatrix;
  std::int64_t elements() const {
    std::int64_t n = 1;
    for (auto d : shape) n *= d;
    return n;
  }
};

// How many positions a tensor has: every token of the micro batch; each token once for every expert it is routed to; the encoder's
// tokens inside a decoder block; the sequences (pooled outputs).
enum class Space { kTokens, kRouted, kEncoderTokens, kSequences };

struct Tensor {
  std::string name;
  std::int64_t width = 0;            // elements a position
  Space space = Space::kTokens;
};
using TensorId = int;

enum class OpKind {
  kEmbedding,       // token ids -> hidden; params: table
  kPositionEmbedding,  // adds a learned table (also token types, patch positions)
  kPatchEmbedding,  // ViT: convolution over the image
  kLinear,          // y = x W^T + b; params: weight [, bias]
  kNorm,            // rms or layer norm over `group` elements (the whole width, or a head)
  kRope,            // rotary embedding of one tensor; `rotary_fraction` of each head
  kAttention,       // in: q, k, v; heads etc. in `attention`
  kActivation,      // element-wise: `activation`
  kGatedActivation, // activation(in[0]) * in[1]
  kMultiply, kAdd,  // element-wise of two tensors (a residual add has is_residual)
  kScale,           // times a parameter vector or constant
  kDropout,         // probability p
  kConcat, kSplit,  // in: 1 or more; split: `outs`
  kRouter,          // hidden -> expert probabilities and top-k; params: weight [, bias, correction]
  kExperts,         // the expert MLPs on routed tokens; `moe`
  kSsm,             // Mamba-2 mixer core; `ssm`
  kConvolution,     // short causal convolution
  kPooler,          // first token -> dense -> tanh
  kOther
};

enum class Activation { kNone, kSilu, kGelu, kGeluTanhPython, kGeluTanh, kRelu, kReluSquared, kTanh, kSwigluOai };

struct AttentionShape {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0, value_head_dim = 0;
  bool causal = true, cross = false, alibi = false, sinks = false, relative_bias = false;
  std::optional<std::int64_t> window;     // sliding window, tokens
  double dropout = 0;
};

struct MoeShape {
  std::int64_t experts = 0, top_k = 0, intermediate = 0, shared_intermediate = 0;
  bool gated = true, bias = false;
  Activation activation = Activation::kSilu;
};

struct SsmShape {
  std::int64_t heads = 0, head_dim = 0, state = 0, groups = 0, conv_kernel = 0, inner = 0, chunk = 0;
};

struct Op {
  OpKind kind = OpKind::kOther;
  std::string module;                // Hugging Face module name relative to the block: "mlp.gate_proj"; "" for plain functions
  std::vector<TensorId> in, outs;    // outs[0] is the result
  std::vector<int> params;           // indices into Block::parameters
  std::int64_t in_features = 0, out_features = 0;  // kLinear; fused projections carry the fused width
  std::int64_t group = 0;            // kNorm: elements normalised together
  bool rms = false;                  // kNorm: RMSNorm
  Activation activation = Activation::kNone;
  double dropout = 0, rotary_fraction = 1;
  bool is_residual = false;
  bool transposed_weight = false;    // kLinear: the weight is stored [in, out] (GPT-2's Conv1D)
  std::vector<std::string> fused_targets;  // kLinear: module names that users know for a fused projection ("q_proj","k_proj","v_proj")
  AttentionShape attention;
  MoeShape moe;
  SsmShape ssm;
};

struct Block {
  std::string class_name;            // the module class that wrap policies name: "LlamaDecoderLayer"
  std::string prefix;                // "model.layers.{}" ; '{}' is the block's number
  std::vector<Parameter> parameters;
  std::vector<Tensor> tensors;       // tensors[input] is the residual stream that comes in
  TensorId input = 0, output = 0;
  std::vector<Op> ops;               // in program order
  std::int64_t elements() const {
    std::int64_t n = 0;
    for (const auto& p : parameters) n += p.elements();
    return n;
  }
};

struct Run {                         // `count` consecutive equal blocks
  int block = 0;                     // index into Model::blocks
  std::int64_t count = 0;
};

struct Model {
  std::string family;                // "llama", "qwen2", ...: the file that built it
  std::string model_type;            // as in config.json; "" when absent
  std::string architecture;          // "LlamaForCausalLM"
  std::int64_t hidden = 0, layers = 0, vocabulary = 0, max_positions = 0, intermediate = 0;
  AttentionShape attention;          // of the (first) attention block
  bool tied_embeddings = false;
  bool encoder_decoder = false, is_causal = true;
  double rope_theta = 0, norm_epsilon = 1e-5;
  // Further numbers of the config: num_labels, image_tokens, rope_type (0 default, 1 linear, 2 dynamic, 3 yarn, 4 longrope,
  // 5 llama3) with rope_factor, rope_low_freq_factor, rope_high_freq_factor, rope_original_max_positions; head_dim_rotated ...
  std::map<std::string, double> facts;
  std::string dtype;                 // as published: "bfloat16", "float16", "float32"; "" when absent
  std::vector<std::string> notes;    // what was left out or taken for granted, for the user to read

  std::vector<Block> blocks;         // the distinct kinds of block
  std::vector<Run> body;             // decoder blocks (or the only stack), in order
  std::vector<Run> encoder;          // encoder-decoder models
  Block embedding;                   // root before the blocks
  Block head;                        // final norm, output projection (absent weight when tied), pooler
  std::string embedding_parameter = "model.embed_tokens.weight";  // full names
  std::string head_parameter = "lm_head.weight";

  std::int64_t parameters() const;   // tied weights once; buffers not counted
  std::int64_t block_count() const;  // body + encoder
};

// `path`: a config.json or a folder with one. `as_family`: "" or a family's name that overrides detection (`--as`).
// Throws Error naming the key: missing or impossible sizes, unknown model_type (lists the families, suggests --as).
Model load_model(const std::string& path, const std::string& as_family = "");
// The same from the text of a config.json; `file` names it in errors.
Model parse_model(const std::string& text, const std::string& file, const std::string& as_family = "");
std::vector<std::string> known_families();

// Every parameter with its full Hugging Face name, in the order of the model; tied ones once.
struct NamedParameter {
  std::string name;
  std::vector<std::int64_t> shape;
  Parameter::Kind kind;
  int unit;                          // -1 embedding root, 0..n-1 block number (encoder first), n head root
};
std::vector<NamedParameter> all_parameters(const Model& model);

}  // namespace shardfit::model
