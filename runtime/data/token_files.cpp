#include "runtime/data/token_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <vector>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"

namespace shardfit::data {

TokenFile describe_token_file(const Source& source, const std::filesystem::path& path) {
  TokenFile file;
  file.path = std::filesystem::absolute(path);
  file.description = file.path.string() + ".json";
  if (!std::filesystem::exists(file.description))
    throw Error("file_missing", "", "is missing: it says how the tokens beside it are stored",
                R"(write {"dtype": "uint16"} or {"dtype": "uint32"} there)")
        .in_file(file.description.string());
  const Json json = read_json_file(file.description);
  const std::string dtype = json.is_object() && json.contains("dtype") && json.at("dtype").is_string()
                                ? json.at("dtype").get<std::string>()
                                : "";
  if (dtype == "uint16" || dtype == "u2" || dtype == "<u2") file.width = 2;
  else if (dtype == "uint32" || dtype == "u4" || dtype == "<u4") file.width = 4;
  else
    throw Error("unknown_word", "/dtype", "is \"" + dtype + "\"; tokens are \"uint16\" or \"uint32\"",
                R"(write {"dtype": "uint16"} or {"dtype": "uint32"})")
        .in_file(file.description.string());
  file.end_of_text = source.end_of_text;
  if (json.contains("eos_token_id") && !json.at("eos_token_id").is_null()) {
    const Json& id = json.at("eos_token_id");
    if (!id.is_number_integer() || id.get<double>() < 0 || id.get<double>() > 2e9)
      throw Error("wrong_type", "/eos_token_id", "is " + brief(id) + ", not a token id")
          .in_file(file.description.string());
    file.end_of_text = id.get<std::int32_t>();
  }
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(file.path));
  if (bytes % file.width != 0)
    throw Error("wrong_length", "", fmt::format("has {} bytes, which is not a whole number of {} tokens", bytes, dtype),
                "see that dtype in the description is right")
        .in_file(file.path.string());
  file.tokens = bytes / file.width;
  return file;
}

bool scan_token_file(const Source& source, const TokenFile& file,
                     const std::function<void(std::int64_t first)>& document, const std::function<void()>& alive) {
  std::ifstream stream(file.path, std::ios::binary);
  if (!stream) throw Error("file_unreadable", "", "cannot be opened").in_file(file.path.string());
  std::vector<char> piece(std::size_t{4} << 20);
  bool ended = true;  // a document begins at the next token
  for (std::int64_t at = 0; at < file.tokens;) {
    const std::int64_t count =
        std::min<std::int64_t>(file.tokens - at, static_cast<std::int64_t>(piece.size()) / file.width);
    stream.read(piece.data(), count * file.width);
    if (!stream)
      throw Error("file_unreadable", "", "cannot be read to its end", "", kExitFailed).in_file(file.path.string());
    for (std::int64_t i = 0; i < count; ++i, ++at) {
      std::uint32_t id = 0;
      std::memcpy(&id, piece.data() + i * file.width, static_cast<std::size_t>(file.width));
      if (id > 0x7FFFFFFFu || (source.vocabulary > 0 && id >= source.vocabulary))
        throw Error("out_of_range", fmt::format("token {}", at),
                    fmt::format("is the id {}; the model's vocabulary has {}", id, source.vocabulary),
                    "tokenize with the model's own tokenizer, and see that dtype in the description is right")
            .in_file(file.path.string());
      if (ended) document(at);
      ended = file.end_of_text && static_cast<std::int64_t>(id) == *file.end_of_text;
    }
    alive();
  }
  return ended;
}

}  // namespace shardfit::data
