#include "pricing/csv.hpp"

#include "regions/base/error.hpp"

namespace shardfit::pricing {

bool CsvReader::next(std::vector<std::string>& cells) {
  cells.clear();
  if (at_ == 0 && text_.substr(0, 3) == "\xEF\xBB\xBF") at_ = 3;
  while (at_ < text_.size() && (text_[at_] == '\n' || text_[at_] == '\r')) {
    if (text_[at_] == '\n') ++next_line_;
    ++at_;
  }
  if (at_ >= text_.size()) return false;
  line_ = next_line_;
  std::string cell;
  for (;;) {
    cell.clear();
    if (at_ < text_.size() && text_[at_] == '"') {
      for (++at_;; ++at_) {
        if (at_ >= text_.size())
          throw Error("bad_csv", "line " + std::to_string(line_), "a quote is opened and never closed").in_file(file_);
        if (text_[at_] == '"') {
          if (at_ + 1 < text_.size() && text_[at_ + 1] == '"') ++at_;
          else break;
        }
        if (text_[at_] == '\n') ++next_line_;
        cell += text_[at_];
      }
      ++at_;
    }
    const size_t end = std::min(text_.find_first_of(",\r\n", at_), text_.size());
    cell += text_.substr(at_, end - at_);
    cells.push_back(cell);
    if (cells.size() > 1000)
      throw Error("bad_csv", "line " + std::to_string(line_), "more than 1000 columns").in_file(file_);
    at_ = end;
    if (at_ >= text_.size() || text_[at_] != ',') return true;
    ++at_;
  }
}

std::string csv_cell(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + "\"";
}

}  // namespace shardfit::pricing
