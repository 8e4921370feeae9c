#include "selector/cli/records.hpp"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "regions/base/error.hpp"
#include "regions/base/json.hpp"

namespace shardfit::cli {

namespace {

OrderedJson error_record(const Error& e) {
  std::string message = e.message;
  if (!e.file.empty()) message = e.file + ": " + message;
  return {{"code", e.code}, {"where", e.where}, {"message", message}, {"remedy", e.remedy}};
}

// The id of a line that is not valid JSON as a whole cannot be told.
OrderedJson id_of(const Json& line) {
  if (!line.is_object() || !line.contains("id")) return nullptr;
  const auto& id = line.at("id");
  return id.is_string() || id.is_number() ? OrderedJson(id) : OrderedJson(nullptr);
}

}  // namespace

int answer_lines(const std::string& file, const std::function<OrderedJson(const Json&, const std::string&)>& answer) {
  std::ifstream opened;
  std::istream* in = &std::cin;
  std::string base_dir;
  if (file != "-") {
    opened.open(file, std::ios::binary);
    if (!opened || std::filesystem::is_directory(file)) {
      Error e("file_missing", "", "cannot be read", "name a file of JSON lines, or - for standard input");
      e.in_file(file);
      throw e;
    }
    in = &opened;
    base_dir = std::filesystem::path(file).parent_path().string();
  }
  bool failed = false;
  std::string text;
  std::size_t number = 0;
  while (std::getline(*in, text)) {
    ++number;
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) continue;
    OrderedJson out = OrderedJson::object();
    out["id"] = nullptr;
    try {
      Json line;
      try {
        line = parse_json(text);
      } catch (const Error& e) {
        throw Error(e.code, "line " + std::to_string(number), e.message + " at " + e.where, e.remedy);
      }
      out["id"] = id_of(line);
      auto record = answer(line, base_dir);
      for (auto& [key, value] : record.items()) out[key] = std::move(value);
    } catch (const Error& e) {
      failed = true;
      out["error"] = error_record(e);
    } catch (const std::exception& e) {
      failed = true;
      out["error"] =
          error_record(Error("internal", "line " + std::to_string(number), e.what(), "please report this line"));
    }
    const std::string printed = out.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
    if (std::fwrite(printed.data(), 1, printed.size(), stdout) != printed.size() || std::fflush(stdout) != 0)
      return kExitFailed;
  }
  return failed ? kExitFailed : kExitDone;
}

}  // namespace shardfit::cli
