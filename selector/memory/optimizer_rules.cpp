#include "selector/memory/optimizer_rules.hpp"

#include <algorithm>
#include <cmath>

namespace shardfit::memory {
namespace {

bool hugging_face(const Setup& s) { return s.trainer == "transformers" || s.trainer == "accelerate" || s.trainer == "axolotl"; }
bool projected(const Setup& s, const TrainedTensor& t) {
  return s.galore_rank > 0 && t.hidden && t.shape.size() == 2 && std::min(t.shape[0], t.shape[1]) > s.galore_rank;
}
bool is_matrix(const TrainedTensor& t) { return t.shape.size() == 2; }
std::int64_t bytes(double elements, double each) { return static_cast<std::int64_t>(std::ceil(elements * each)); }

}  // namespace

void add_states(const Setup& s, const TrainedTensor& t, std::vector<std::int64_t>& states) {
  const std::string& name = s.job.optimizer.name;
  const auto part = [&t](std::int64_t n) { return static_cast<std::int64_t>(std::ceil(static_cast<double>(n) * t.share)); };
  if (name == "adafactor") {             // no first moment; a matrix keeps a row and a column (adafactor.py of torch and transformers)
    if (is_matrix(t)) {
      states.push_back(part(t.shape[0]));
      states.push_back(part(t.shape[1]));
    } else {
      states.push_back(t.kept);
    }
    return;
  }
  if (projected(s, t)) {                 // both moments of the gradient projected to rank r, and the projection (galore_torch/adamw.py)
    const std::int64_t small = std::min(t.shape[0], t.shape[1]), large = std::max(t.shape[0], t.shape[1]), r = s.galore_rank;
    for (std::int64_t n : {r * large, r * large, r * small}) states.push_back(part(n));
    return;
  }
  int count = s.states;
  if (name == "muon" && !t.hidden) count = 2;
  // transformers/trainer.py create_optimizer: 32-bit states for embeddings under bitsandbytes' 8-bit optimizers; for all of them since
  // 4.52, before only where the class is called Adam8bit, which no choice of TrainingArguments gave
  double wider = 1;
  if (s.low_bit_wide_embeddings && t.embedding) wider = 4 / s.state_bytes;
  for (int i = 0; i < count; ++i) states.push_back(wider == 1 ? t.kept : static_cast<std::int64_t>(static_cast<double>(t.kept) * wider));
}

std::int64_t update_temporary(const Setup& s, const TrainedTensor& t) {
  const std::string& name = s.job.optimizer.name;
  const double n = static_cast<double>(t.kept);
  if (name == "adafactor") {
    // transformers/optimization.py: fp32 copies of gradient and weight where they are narrower, update and its square; torch's makes the
    // estimate in the weight's format
    if (!hugging_face(s)) return bytes(n, s.parameter_bytes);
    return bytes(n, s.parameter_bytes < 4 ? 16 : 8);
  }
  if (name == "muon" && t.hidden && is_matrix(t)) {
    // torch/optim/_muon.py: the update, the iterate before and after in bf16, two products of the short side
    const double side = static_cast<double>(std::min(t.shape[0], t.shape[1]));
    return bytes(n, s.state_bytes) + bytes(n, 4) + bytes(side * side, 4);
  }
  if (projected(s, t)) {
    // project_back makes the whole update; at each new projection torch.linalg.svd works on fp32 copies (galore_projector.py)
    const double rows = static_cast<double>(t.shape[0]), columns = static_cast<double>(t.shape[1]), side = std::min(rows, columns);
    return std::max(bytes(n, s.state_bytes), bytes((2 * rows * columns + side * (rows + columns)) * t.share, 4));
  }
  if (s.galore_rank > 0 || (name == "muon" && !t.hidden)) return bytes(n, 2 * s.state_bytes);
  if (s.step != Setup::Step::kSingle) return name == "lion" && !hugging_face(s) && s.step != Setup::Step::kFused ? bytes(n, 2 * s.state_bytes) : 0;
  if (name == "sgd") return s.job.train.weight_decay > 0 ? bytes(n, s.gradient_bytes) : 0;
  if (name == "lion") return hugging_face(s) ? 0 : bytes(n, 2 * s.state_bytes);   // lion_pytorch: a clone of the moment and its sum; bitsandbytes: one kernel
  return bytes(n, 2 * s.state_bytes);    // torch/optim/adamw.py _single_tensor_adamw: the root and what it becomes
}

double foreach_copy(const Setup& s) {
  if (s.step != Setup::Step::kForeach) return 0;
  const std::string& name = s.job.optimizer.name;
  if (name == "adamw" || name == "adam") return s.state_bytes;                      // _multi_tensor_adamw: sqrt(exp_avg_sq) as a list
  if (name == "sgd") return s.job.train.weight_decay > 0 ? s.gradient_bytes : 0;    // _multi_tensor_sgd: gradient plus decay
  return 0;                              // Adafactor, Muon, Lion and GaLore have no foreach form
}

}  // namespace shardfit::memory
