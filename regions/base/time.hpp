// Points in time: RFC 3339 with date-only and vague forms, as price rows and ledgers carry them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shardfit {

// Seconds since 1970-01-01 UTC. Takes "2026-08-22T10:00:00Z" (with fraction or offset), "2026-08-22", and the vague
// "2026-08", "2026", "2025-2026", "2024 (inferred)", which mean their earliest instant. nullopt when it cannot be read.
std::optional<std::int64_t> parse_time(std::string_view text);
std::string format_time(std::int64_t seconds);  // "2026-08-22T10:00:00Z"
std::string format_date(std::int64_t seconds);  // "2026-08-22"
std::int64_t now_seconds();                     // wall clock

}  // namespace shardfit
