// Models that were already read: the lines of one file mostly name the same few.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "selector/model/model.hpp"

namespace shardfit::search {

class ModelCache {
 public:
  // As model::load_model, which it throws for; a model that failed is tried again.
  std::shared_ptr<const model::Model> load(const std::string& path, const std::string& as_family) {
    auto& slot = models_[{path, as_family}];
    if (!slot) slot = std::make_shared<const model::Model>(model::load_model(path, as_family));
    return slot;
  }

 private:
  std::map<std::pair<std::string, std::string>, std::shared_ptr<const model::Model>> models_;
};

}  // namespace shardfit::search
