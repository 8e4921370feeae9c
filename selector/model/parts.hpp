// What the families share: the common sizes, the decoder around the blocks, and the sub-layers that recur.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "selector/model/builder.hpp"
#include "selector/model/config.hpp"

namespace shardfit::model {

struct Dims {
  std::int64_t hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, intermediate = 0, vocabulary = 0, max_positions = 0;
  double norm_epsilon = 1e-5, attention_dropout = 0;
  bool tied = false;
};

// The usual keys in all their spellings. `tied`: what an absent tie_word_embeddings means. `default_intermediate` 0: the key is required.
// Checks that heads divide the width (unless head_dim is given) and that kv_heads divide the heads.
Dims read_dims(const Config& c, bool tied, std::int64_t default_intermediate = 0);
void check_heads(const Config& c, std::int64_t hidden, std::int64_t heads);
void check_groups(const Config& c, std::string_view key, std::int64_t heads, std::int64_t kv_heads);
AttentionShape attention_shape(const Dims& d);

// A model with the common members filled in (type and architecture from the config, rope from its old or new keys).
Model begin(const Config& c, const Dims& d);
void read_rope(const Config& c, Model& m, double default_theta = 10000);

// Blocks: `count` equal ones, or one a layer by kind, each distinct kind built once.
void repeat(Model& m, Block block, std::int64_t count);
void layers_by_kind(Model& m, const std::vector<int>& kinds, const std::function<Block(int kind)>& build);
// Kinds from `layer_types` (kind 1 where the word is "sliding_attention" or "chunked_attention"); when absent, every layer but each
// `period`-th is kind 1, or all are kind 0 where period is 0.
std::vector<int> sliding_kinds(const Config& c, std::int64_t layers, std::int64_t period);

// --- roots -------------------------------------------------------------------------------------------------------------------
struct Embedding {
  std::string table = "model.embed_tokens";
  std::string positions;                    // "" = none
  std::int64_t position_rows = 0;
  std::string dropout;                      // module name; "" = none in the code
  double dropout_p = 0;
  bool scaled = false;                      // Gemma: times sqrt(hidden)
};
void token_embedding(Model& m, const Embedding& e);

enum class NormKind { kRms, kLayer, kLayerNoBias };
struct Head {
  std::string norm = "model.norm";          // "" = none
  NormKind kind = NormKind::kRms;
  std::string projection = "lm_head";
  bool bias = false;
  double softcap = 0;                       // Gemma 2: c * tanh(logits / c)
  bool scaled = false;                      // logits or hidden times a constant
};
void language_head(Model& m, const Head& h);

// The usual decoder layer: x + attention(norm(x)), then x + feed_forward(norm(x)).
using SubLayer = std::function<TensorId(Builder&, TensorId)>;
Block pre_norm_layer(const std::string& class_name, const std::string& prefix, std::int64_t hidden, NormKind kind, const SubLayer& attention,
                     const SubLayer& feed_forward, const std::string& first = "input_layernorm", const std::string& second = "post_attention_layernorm");

TensorId norm(Builder& b, NormKind kind, const std::string& module, TensorId x);

// --- sub-layers --------------------------------------------------------------------------------------------------------------
struct AttentionNames {
  std::string module = "self_attn", q = "q_proj", k = "k_proj", v = "v_proj", o = "o_proj", q_norm = "q_norm", k_norm = "k_norm";
};
enum class QkNorm { kNone, kHead, kWidth };
struct SelfAttention {
  AttentionShape shape;
  AttentionNames names = {};
  bool qkv_bias = false, o_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  NormKind qk_norm_kind = NormKind::kRms;
  double rotary = 1;                        // fraction of each head; 0 = no rotary embedding
  std::vector<std::string> extra = {};      // names of parameters of the attention itself ("self_attn.sinks"), one a head
};
// q, k and v linears, their norms, rope, attention, output projection.
TensorId self_attention(Builder& b, TensorId x, const SelfAttention& a);
// The same from q, k and v as they come out of the projections.
TensorId attend(Builder& b, TensorId q, TensorId k, TensorId v, const SelfAttention& a);
// One fused projection of q, k and v (all of q, then k, then v, or grouped: the graph is the same), split into three views.
std::vector<TensorId> fused_qkv(Builder& b, const std::string& module, TensorId x, const AttentionShape& shape, bool bias);

struct Mlp {
  std::string module = "mlp";
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::int64_t intermediate = 0;
  Activation activation = Activation::kSilu;
  bool bias = false;
};
TensorId gated_mlp(Builder& b, TensorId x, const Mlp& m);
TensorId plain_mlp(Builder& b, TensorId x, const Mlp& m);        // up, activation, down
TensorId fused_gated_mlp(Builder& b, TensorId x, const Mlp& m);  // `up` holds gate and up in one weight

struct Moe {
  std::string module = "mlp";
  std::string router = "gate", experts = "experts";
  bool router_bias = false, correction_bias = false;
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";  // of each expert, published one by one
  MoeShape shape;
};
// Router and routed experts; a shared expert is added by the family (gated_mlp beside it, then Builder::add).
TensorId mixture(Builder& b, TensorId x, const Moe& m);

// Expert counts and sizes; experts to a token from num_experts_per_tok, experts_per_token or top_k_experts.
MoeShape read_moe(const Config& c, std::int64_t experts, std::int64_t intermediate);
// 1 for a layer with experts, 0 for a dense one, by decoder_sparse_step and mlp_only_layers (Qwen MoE).
std::vector<int> sparse_kinds(const Config& c, std::int64_t layers);
// Gemma 2 and 3: norms before and after attention and MLP.
Block sandwich_layer(const std::string& class_name, const std::string& prefix, std::int64_t hidden, const SelfAttention& attention, const Mlp& mlp);

// Multi-head latent attention (DeepSeek V2, arXiv 2405.04434, section 2.1).
struct Mla {
  std::string module = "self_attn";
  std::int64_t heads = 0, q_rank = 0, kv_rank = 0, nope = 0, rope = 0, value = 0;  // q_rank 0: q is projected at once
  double dropout = 0;
  bool bias = false;
};
Mla read_mla(const Config& c, const Dims& d);
TensorId latent_attention(Builder& b, TensorId x, const Mla& a);
AttentionShape latent_shape(const Mla& a);

// --- heads of encoders and image models ------------------------------------------------------------------------------------------
std::int64_t read_labels(const Config& c, std::int64_t fallback);  // num_labels, or the entries of id2label

struct VisionDims {
  std::int64_t hidden = 0, layers = 0, heads = 0, intermediate = 0, image = 0, patch = 0, channels = 0, patches = 0, labels = 0;
  Activation activation = Activation::kGelu;
  double attention_dropout = 0;
};
VisionDims read_vision(const Config& c, std::int64_t default_image, std::int64_t default_patch);
Model begin_vision(const Config& c, const VisionDims& v);  // facts: image_tokens (patches and class token), num_labels
// Class token, patch projection, positions, with the names of `module`; `mask_token`: DINOv2 has one more parameter.
void vision_embedding(Model& m, const VisionDims& v, const std::string& module, bool mask_token, double dropout);

}  // namespace shardfit::model
