// The token cache of a data source: found, or made.
#pragma once
#include <memory>

#include "runtime/data/dataset.hpp"
#include "runtime/data/token_store.hpp"

namespace shardfit::data {

// See Dataset::open. Without a cache folder the tokens go into an unnamed file in the folder for temporary files.
std::unique_ptr<TokenStore> open_token_cache(const Source& source, double wait_seconds);

}  // namespace shardfit::data
