// `--in FILE.jsonl`: one record in, one record out, in order; a line that fails gives an error record and the others go
// on.
#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace shardfit::cli {

// `answer` takes the line and the folder that its paths are relative to, and returns the record without "id"; what it
// throws becomes
// {"id", "error": {"code", "where", "message", "remedy"}}. "-" = standard input. Blank lines are skipped. Returns the
// exit status: 0, or 1 if any line failed. Throws Error{file_missing} for the file itself.
int answer_lines(
    const std::string& file,
    const std::function<nlohmann::ordered_json(const nlohmann::json& line, const std::string& base_dir)>& answer);

}  // namespace shardfit::cli
