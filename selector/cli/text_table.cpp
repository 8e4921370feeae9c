#include "selector/cli/text_table.hpp"

#include <algorithm>

namespace shardfit::cli {
namespace {

// Columns a UTF-8 text takes: bytes that begin a character.
size_t width(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

TextTable::TextTable(std::vector<std::string> header) : header_(std::move(header)) {
  for (auto& h : header_) {
    right_.push_back(!h.empty() && h[0] == '>');
    h = h.substr(1);
  }
}

void TextTable::add(std::vector<std::string> cells) {
  cells.resize(header_.size());
  rows_.push_back(std::move(cells));
}

std::string TextTable::text() const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < header_.size(); ++c) {
    size_t w = width(header_[c]);
    for (const auto& r : rows_) w = std::max(w, width(r[c]));
    widths.push_back(w);
  }
  std::string out;
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string l;
    for (size_t c = 0; c < cells.size(); ++c) {
      const std::string pad(widths[c] - width(cells[c]), ' ');
      l += (c ? "  " : "") + (right_[c] ? pad + cells[c] : cells[c] + pad);
    }
    while (!l.empty() && l.back() == ' ') l.pop_back();
    out += l + "\n";
  };
  line(header_);
  for (const auto& r : rows_) line(r);
  return out;
}

}  // namespace shardfit::cli
