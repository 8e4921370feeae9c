// Which modules an adapter method trains, where the job leaves that to the library or names what the model does not
// have.
#pragma once
#include <optional>
#include <string>

namespace shardfit::job {
struct Job;
}
namespace shardfit::model {
struct Model;
}

namespace shardfit::search {

// Fills in the targets of a lora, qlora or ia3 job that names none: the attention projections that PEFT takes
// (peft/utils/constants.py: query and value, or the fused projection that holds them; for IA3 key, value and the second
// feed-forward matrix). Returns the line for `assumed`, nullopt where nothing was filled in. Throws
// Error{unknown_module} where no target names a module of the model. `where`: of the job, "" or "/job".
std::optional<std::string> settle_targets(job::Job& job, const model::Model& model, const std::string& where);

}  // namespace shardfit::search
