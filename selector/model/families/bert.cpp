// BERT (transformers/models/bert/modeling_bert.py) and RoBERTa (models/roberta), with the head that `architectures` names: norms
// after the sub-layers, attention to both sides.
#include "selector/model/families.hpp"
#include "selector/model/parts.hpp"

namespace shardfit::model {

namespace {

struct Names {
  std::string root, model_class;
  bool roberta = false;
};

// Files saved from a fine-tuning run under the name of the published checkpoint, without labels: the checkpoint itself is meant.
bool names_published_checkpoint(const Config& c) {
  const std::string name = c.word_or({"_name_or_path"}, "");
  return (name.starts_with("bert-") || name.starts_with("google-bert/bert-")) && !c.has("num_labels") && !c.has("id2label");
}

void head(Model& m, const Config& c, const Names& names, std::string architecture) {
  const std::string root = names.root + ".";
  const auto is = [&](const char* task) { return architecture.ends_with(task); };
  if (is("ForSequenceClassification") && names_published_checkpoint(c)) {
    architecture = names.model_class + "ForMaskedLM";
    m.notes.push_back("the file bears the name of the published checkpoint and no labels: taken with its masked-language head");
  }
  const std::int64_t labels = read_labels(c, 2);
  const double drop = c.probability_or({"classifier_dropout", "hidden_dropout_prob"}, 0.1);
  Builder b("", "", m.hidden);
  TensorId x = b.input();
  m.architecture = architecture;
  if (is("ForQuestionAnswering")) {
    m.head = b.finish(b.linear("qa_outputs", x, labels, true));
    m.head_parameter = "qa_outputs.weight";
  } else if (is("ForTokenClassification")) {
    m.head = b.finish(b.linear("classifier", b.dropout("dropout", x, drop), labels, true));
    m.head_parameter = "classifier.weight";
  } else if (is("ForSequenceClassification") && names.roberta) {
    x = b.dropout("classifier.dropout", b.first_token(x), drop);
    x = b.activation("classifier.tanh", b.linear("classifier.dense", x, m.hidden, true), Activation::kTanh);
    m.head = b.finish(b.linear("classifier.out_proj", b.dropout("classifier.dropout", x, drop), labels, true));
    m.head_parameter = "classifier.out_proj.weight";
  } else if (is("ForSequenceClassification") || is("ForMultipleChoice")) {
    x = b.dropout("dropout", b.pooler(root + "pooler.dense", x), drop);
    m.head = b.finish(b.linear("classifier", x, is("ForMultipleChoice") ? 1 : labels, true));
    m.head_parameter = "classifier.weight";
  } else if (is("Model")) {
    m.head = b.finish(b.pooler(root + "pooler.dense", x));
    m.head_parameter = root + "pooler.dense.weight";
  } else if (names.roberta) {
    x = b.activation("lm_head.gelu", b.linear("lm_head.dense", x, m.hidden, true), Activation::kGelu);
    x = b.layer_norm("lm_head.layer_norm", x);
    m.head = b.finish(m.tied_embeddings ? b.tied_linear("lm_head.decoder", x, m.vocabulary, "lm_head.bias") : b.linear("lm_head.decoder", x, m.vocabulary, true));
    m.head_parameter = "lm_head.decoder.weight";
  } else {  // masked language model, and pre-training with the next-sentence head beside it
    const bool pair = is("ForPreTraining");
    if (pair) {
      const TensorId pooled = b.pooler(root + "pooler.dense", x);
      b.linear("cls.seq_relationship", pooled, 2, true);
    }
    const Activation act = c.activation({"hidden_act"}, "gelu");
    x = b.activation("cls.predictions.transform.act", b.linear("cls.predictions.transform.dense", x, m.hidden, true), act);
    x = b.layer_norm("cls.predictions.transform.LayerNorm", x);
    if (m.tied_embeddings) x = b.tied_linear("cls.predictions.decoder", x, m.vocabulary, "cls.predictions.bias");
    else x = b.linear("cls.predictions.decoder", x, m.vocabulary, true);
    m.head = b.finish(x);
    m.head_parameter = "cls.predictions.decoder.weight";
  }
}

Model build(const Config& c, const Names& names) {
  Dims d = read_dims(c, true);
  d.attention_dropout = c.probability_or({"attention_probs_dropout_prob"}, 0.1);
  Model m = begin(c, d);
  m.is_causal = m.attention.causal = false;
  const double drop = c.probability_or({"hidden_dropout_prob"}, 0.1);
  const std::string embeddings = names.root + ".embeddings";
  const Activation act = c.activation({"hidden_act"}, "gelu");
  {
    Builder b("", "", 1);
    TensorId x = b.embedding(embeddings + ".word_embeddings", b.input(), d.vocabulary, d.hidden);
    x = b.position_embedding(embeddings + ".token_type_embeddings", x, c.size_or({"type_vocab_size"}, 2, 1));
    x = b.position_embedding(embeddings + ".position_embeddings", x, d.max_positions);
    m.embedding = b.finish(b.dropout(embeddings + ".dropout", b.layer_norm(embeddings + ".LayerNorm", x), drop));
    m.embedding_parameter = embeddings + ".word_embeddings.weight";
  }
  Builder b(names.model_class + "Layer", names.root + ".encoder.layer.{}", d.hidden);
  TensorId x = b.input();
  const TensorId q = b.linear("attention.self.query", x, d.hidden, true), k = b.linear("attention.self.key", x, d.hidden, true);
  const TensorId v = b.linear("attention.self.value", x, d.hidden, true);
  const TensorId attended = b.linear("attention.output.dense", b.attention("attention.self", q, k, v, m.attention), d.hidden, true);
  x = b.layer_norm("attention.output.LayerNorm", b.residual(b.dropout("attention.output.dropout", attended, drop), x));
  const TensorId wide = b.activation("intermediate.intermediate_act_fn", b.linear("intermediate.dense", x, d.intermediate, true), act);
  const TensorId fed = b.linear("output.dense", wide, d.hidden, true);
  x = b.layer_norm("output.LayerNorm", b.residual(b.dropout("output.dropout", fed, drop), x));
  repeat(m, b.finish(x), d.layers);

  const auto words = c.words("architectures");
  head(m, c, names, words.empty() ? names.model_class + "ForMaskedLM" : words.front());
  m.facts["num_labels"] = static_cast<double>(read_labels(c, 2));
  return m;
}

}  // namespace

Model build_bert(const Config& c) { return build(c, {"bert", "Bert", false}); }
Model build_roberta(const Config& c) { return build(c, {"roberta", "Roberta", true}); }

}  // namespace shardfit::model
