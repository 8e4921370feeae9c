// Comma-separated text with quotes (RFC 4180), one pass, views into the text where nothing is quoted.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace shardfit::pricing {

class CsvReader {
 public:
  CsvReader(std::string_view text, std::string file) : text_(text), file_(std::move(file)) {}

  // The next record's cells; false at the end. Blank lines are passed over. Throws Error{bad_csv} with the line.
  bool next(std::vector<std::string>& cells);
  int line() const { return line_; }  // of the record just read

 private:
  std::string_view text_;
  std::string file_;
  size_t at_ = 0;
  int line_ = 0, next_line_ = 1;
};

std::string csv_cell(std::string_view text);  // quoted where it must be

}  // namespace shardfit::pricing
