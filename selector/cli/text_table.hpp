// Columns of text for the terminal: widths from the cells, numbers to the right.
#pragma once
#include <string>
#include <vector>

namespace shardfit::cli {

class TextTable {
 public:
  // "<GPU" left, ">PRICE" right.
  explicit TextTable(std::vector<std::string> header);
  void add(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  std::string text() const;

 private:
  std::vector<std::string> header_;
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace shardfit::cli
