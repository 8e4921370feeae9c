// An estimate as people read it.
#pragma once
#include <string>

#include "selector/cli/job_setting.hpp"
#include "selector/search/estimator.hpp"

namespace shardfit::cli {

std::string estimate_table(const JobSetting& setting, const search::Estimated& estimated);

}  // namespace shardfit::cli
