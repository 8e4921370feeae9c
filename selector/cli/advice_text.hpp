// The advice that goes with an estimate of a job that does not surely fit.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "selector/cli/job_setting.hpp"
#include "selector/memory/advice.hpp"

namespace shardfit::cli {

// Empty for a job that fits. GPU time comes from selector/time with this machine's calibration, where it can be told.
std::vector<memory::Advice> advice_for(const JobSetting& setting);

// What would fit with other training (8-bit states, shorter sequences, adapters); empty where none does.
std::vector<memory::Advice> hints_for(const JobSetting& setting);

std::string hints_table(const std::vector<memory::Advice>& hints);    // "" when there is none
std::string advice_table(const std::vector<memory::Advice>& advice);  // "" when there is none
nlohmann::ordered_json advice_json(
    const std::vector<memory::Advice>&
        advice);  // list of {changes, frees, frees_host, device_peak_high, host, slower, costs, fits, needs, plan}

}  // namespace shardfit::cli
