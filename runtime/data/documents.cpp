#include "runtime/data/documents.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "runtime/tokenizer/unicode.hpp"

namespace shardfit::data {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;  // a text is tokenized in pieces of about this many bytes
constexpr std::size_t kLongestLine = std::size_t{1} << 30;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Where a text can be cut without changing its tokens: before a space between two letters, which every pre-tokenizer
// here cuts anyway. text.size() if there is no such place at or after `from`.
std::size_t safe_cut(std::string_view text, std::size_t from) {
  for (std::size_t at = std::max<std::size_t>(from, 1); at + 1 < text.size(); ++at)
    if (text[at] == ' ' && is_letter(text[at - 1]) && is_letter(text[at + 1])) return at;
  return text.size();
}

// A text given as pieces; `more(buffer)` appends to the buffer and returns false at the end of the text.
void give_text(const std::function<bool(std::string&)>& more, const std::string& file, const std::string& where,
               const std::function<void(RawDocument&&)>& give) {
  std::string buffer;
  bool first = true, ended = false;
  std::size_t searched = kPiece;
  while (true) {
    while (!ended && buffer.size() <= searched) ended = !more(buffer);
    const std::size_t cut = buffer.size() <= searched ? buffer.size() : safe_cut(buffer, searched);
    if (cut == buffer.size() && !ended) {  // no place to cut so far
      searched = buffer.size();
      continue;
    }
    RawDocument piece;
    piece.text = buffer.substr(0, cut);
    piece.first = first;
    piece.last = cut == buffer.size();
    piece.file = file;
    piece.where = where;
    const bool last = piece.last;
    give(std::move(piece));
    if (last) return;
    buffer.erase(0, cut);
    first = false;
    searched = kPiece;
  }
}

void give_file(const std::filesystem::path& file, const std::function<void(RawDocument&&)>& give) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw Error("file_unreadable", "", "cannot be opened").in_file(file.string());
  std::vector<char> piece(kPiece);
  const auto more = [&](std::string& buffer) {
    stream.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    if (stream.bad())
      throw Error("file_unreadable", "", "cannot be read to its end", "", kExitFailed).in_file(file.string());
    buffer.append(piece.data(), static_cast<std::size_t>(stream.gcount()));
    return stream.good();
  };
  give_text(more, file.string(), "", give);
}

std::vector<std::int32_t> integers(const Json& row, const char* key, const RawDocument& raw) {
  const Json& list = row.at(key);
  const auto wrong = [&](const Json& value) {
    return Error("wrong_type", raw.where + " " + key, "holds " + brief(value) + "; a list of whole numbers is needed")
        .in_file(raw.file);
  };
  if (!list.is_array()) throw wrong(list);
  std::vector<std::int32_t> values;
  values.reserve(list.size());
  for (const Json& value : list) {
    if (!value.is_number_integer() || value.get<double>() < -1e9 || value.get<double>() > 2e9) throw wrong(value);
    values.push_back(value.get<std::int32_t>());
  }
  return values;
}

bool has_text(const Json& row, const std::string& key) { return row.contains(key) && row.at(key).is_string(); }

void give_line(const Source& source, const std::string& line, const std::string& file, std::int64_t number,
               const std::function<void(RawDocument&&)>& give) {
  RawDocument raw;
  raw.file = file;
  raw.where = fmt::format("line {}", number);
  const Json row = Json::parse(line, nullptr, false);
  if (row.is_discarded() || !row.is_object())
    throw Error("bad_json", raw.where, "is not a JSON object", "write one object a line").in_file(file);
  if (row.contains("input_ids")) {
    raw.kind = RawDocument::Kind::kIds;
    raw.ids = integers(row, "input_ids", raw);
    if (row.contains("labels") && !row.at("labels").is_null()) {
      raw.labels = integers(row, "labels", raw);
      if (raw.labels.size() != raw.ids.size())
        throw Error("wrong_length", raw.where + " labels",
                    fmt::format("has {} labels for {} input_ids", raw.labels.size(), raw.ids.size()),
                    "give one label a token, -100 where it is not supervised")
            .in_file(file);
    }
    return give(std::move(raw));
  }
  if (has_text(row, "prompt") && has_text(row, "completion")) {
    raw.kind = RawDocument::Kind::kPromptCompletion;
    raw.text = row.at("prompt").get<std::string>();
    raw.completion = row.at("completion").get<std::string>();
    return give(std::move(raw));
  }
  if (!has_text(row, source.text_key))
    throw Error("missing_key", raw.where, "has no text under \"" + source.text_key + "\"",
                "set data.text_key, or write \"input_ids\" or \"prompt\" and \"completion\"")
        .in_file(file);
  const auto& text = row.at(source.text_key).get_ref<const std::string&>();
  give_text([&](std::string& buffer) { return buffer = text, false; }, file, raw.where, give);
}

void check_ids(const Source& source, const RawDocument& raw, const std::vector<std::int32_t>& ids, const char* what,
               bool labels) {
  for (const std::int32_t id : ids) {
    const bool known = id >= 0 && (source.vocabulary == 0 || id < source.vocabulary);
    if (known || (labels && id == kNotSupervised)) continue;
    throw Error("out_of_range", fmt::format("{} {}", raw.where, what),
                fmt::format("holds the id {}; the model's vocabulary has {}", id, source.vocabulary),
                "tokenize with the model's own tokenizer")
        .in_file(raw.file);
  }
}

bool taken_from_folder(const Source& source, const std::filesystem::path& path) {
  if (source.format == "jsonl") return path.extension() == ".jsonl";
  if (source.format == "tokens") return path.extension() != ".json" && std::filesystem::exists(path.string() + ".json");
  return true;
}

void add_folder(const Source& source, const std::filesystem::path& folder, std::vector<std::filesystem::path>& files) {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().filename().string().starts_with(".")) {
      if (entry->is_directory()) entry.disable_recursion_pending();
    } else if (entry->is_regular_file() && taken_from_folder(source, entry->path())) {
      found.push_back(entry->path());
    }
  }
  if (error) throw Error("file_unreadable", "", "cannot be listed: " + error.message()).in_file(folder.string());
  if (found.empty())
    throw Error("data_empty", "", "holds no file of format " + source.format,
                source.format == "tokens"  ? "each file of tokens needs a description FILE.json beside it"
                : source.format == "jsonl" ? "files are taken by the ending .jsonl"
                                           : "")
        .in_file(folder.string());
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.string() < b.string(); });
  files.insert(files.end(), found.begin(), found.end());
}

}  // namespace

std::vector<std::filesystem::path> files_of(const Source& source) {
  std::vector<std::filesystem::path> files;
  for (const std::string& name : source.files) {
    std::error_code error;
    const auto status = std::filesystem::status(name, error);
    if (std::filesystem::is_directory(status)) add_folder(source, name, files);
    else if (std::filesystem::exists(status)) files.emplace_back(name);
    else
      throw Error("file_missing", "", "there is no such file or folder of data",
                  "check data.train and data.eval; paths are relative to the job file")
          .in_file(name);
  }
  if (files.empty()) throw Error("data_empty", "/data", "names no file");
  return files;
}

void read_documents(const Source& source, const std::filesystem::path& file,
                    const std::function<void(RawDocument&&)>& give) {
  if (source.format == "text") return give_file(file, give);
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw Error("file_unreadable", "", "cannot be opened").in_file(file.string());
  std::string line;
  for (std::int64_t number = 1; std::getline(stream, line); ++number) {
    if (line.size() > kLongestLine)
      throw Error("out_of_range", fmt::format("line {}", number), "is longer than 1 GiB").in_file(file.string());
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    give_line(source, line, file.string(), number, give);
  }
  if (stream.bad())
    throw Error("file_unreadable", "", "cannot be read to its end", "", kExitFailed).in_file(file.string());
}

Document tokenize(const Source& source, const RawDocument& raw) {
  Document document;
  if (raw.kind == RawDocument::Kind::kIds) {
    check_ids(source, raw, raw.ids, "input_ids", false);
    check_ids(source, raw, raw.labels, "labels", true);
    document.ids = raw.ids;
    document.labels = raw.labels;
    return document;
  }
  if (source.tokenizer == nullptr)
    throw Error("file_missing", raw.where, "is text, and the model has no tokenizer.json",
                "put tokenizer.json beside the model's config.json, or give \"input_ids\"")
        .in_file(raw.file);
  const tokenizer::Tokenizer& tokenizer = *source.tokenizer;
  document.repaired = !tokenizer::is_utf8(raw.text);
  const auto append = [&](const std::vector<std::int32_t>& ids) {
    document.ids.insert(document.ids.end(), ids.begin(), ids.end());
  };
  if (raw.first) append(tokenizer.before());
  append(tokenizer.encode(raw.text, false));
  if (raw.kind == RawDocument::Kind::kPromptCompletion) {
    document.labels.assign(document.ids.size(), kNotSupervised);
    append(tokenizer.encode(raw.completion, false));
    if (source.end_of_text && (document.ids.empty() || document.ids.back() != *source.end_of_text))
      document.ids.push_back(*source.end_of_text);
    document.labels.insert(document.labels.end(),
                           document.ids.begin() + static_cast<std::ptrdiff_t>(document.labels.size()),
                           document.ids.end());
  } else if (raw.last) {
    append(tokenizer.after());
  }
  check_ids(source, raw, document.ids, "text", false);
  return document;
}

}  // namespace shardfit::data
