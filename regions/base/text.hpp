// Small text helpers: nearest known word, splitting, sizes and durations as people read and write them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardfit {

// Edit distance (insert, delete, replace, swap of neighbours), case-insensitive.
int edit_distance(std::string_view a, std::string_view b);
// The known word nearest to `word`, or nullopt where none is within about a third of its length.
std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& known);
std::vector<std::string> split(std::string_view text, char separator);
std::string join(const std::vector<std::string>& parts, std::string_view separator);
std::string trim(std::string_view text);
std::string to_lower(std::string_view text);

std::string format_gib(double bytes);         // "12.34 GiB"
std::string format_bytes(double bytes);       // "512 B", "1.5 MiB", "12.34 GiB", "1.20 TiB"
std::string format_duration(double seconds);  // "45.0 s", "12 min 03 s", "3 h 20 min", "2 d 4 h"
std::string format_count(double n);           // "134.5 M", "8.03 B"
// "90", "90s", "15m", "12h", "2d", "1h30m" and Slurm's "D-HH:MM:SS"-like forms -> seconds; throws Error{bad_duration}.
double parse_duration(std::string_view text, std::string_view where);

}  // namespace shardfit
