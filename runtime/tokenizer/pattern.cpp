#include "runtime/tokenizer/pattern.hpp"

#include <bitset>
#include <limits>
#include <utility>
#include <vector>

#include "regions/base/error.hpp"
#include "runtime/tokenizer/unicode.hpp"

namespace shardfit::tokenizer {
namespace {

constexpr std::size_t kNoMatch = std::numeric_limits<std::size_t>::max();
constexpr int kUnbounded = std::numeric_limits<int>::max();

// A set of code points: ranges, categories and nested sets; ASCII is looked up in a bitmap.
struct CharSet {
  std::vector<std::pair<CodePoint, CodePoint>> ranges;
  std::uint32_t categories = 0;
  bool spaces = false, negated = false, ignore_case = false;
  std::vector<CharSet> parts;
  std::bitset<128> ascii;

  bool in_one(CodePoint v) const {
    for (const auto& [first, last] : ranges)
      if (v >= first && v <= last) return true;
    if (categories != 0 && (category_bit(v) & categories) != 0) return true;
    if (spaces && is_space(v)) return true;
    for (const CharSet& part : parts)
      if (part.computed(v)) return true;
    return false;
  }
  bool computed(CodePoint v) const {
    bool in = in_one(v);
    if (!in && ignore_case) in = in_one(lower(v)) || in_one(upper(v));
    return in != negated;
  }
  void finish() {
    for (CodePoint v = 0; v < 128; ++v) ascii[v] = computed(v);
  }
  bool contains(CodePoint v) const { return v < 128 ? ascii[v] : computed(v); }
};

enum class Mode { kGreedy, kLazy, kPossessive };

struct Node;
using Sequence = std::vector<Node>;

struct Node {
  enum class Kind { kSet, kGroup, kLookahead, kNotLookahead, kTextStart, kTextEnd } kind = Kind::kSet;
  CharSet set;                         // kSet
  std::vector<Sequence> alternatives;  // kGroup and lookaheads
  int least = 1, most = 1;
  Mode mode = Mode::kGreedy;
};

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  std::vector<Sequence> whole() {
    auto alternatives = parse_alternatives(false);
    if (at_ < text_.size()) fail("a ')' without its '('");
    return alternatives;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error("tokenizer_unsupported", "",
                "the Split pattern " + std::string(text_.substr(0, 120)) + " has " + what + " at character " +
                    std::to_string(at_),
                "use a tokenizer whose pattern has alternatives, classes, quantifiers and lookahead only");
  }
  bool more() const { return at_ < text_.size(); }
  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  CodePoint next() {
    if (!more()) fail("an end that comes too early");
    const Decoded d = decode_at(text_, at_);
    at_ += d.length;
    return d.value;
  }

  std::vector<Sequence> parse_alternatives(bool ignore_case) {
    if (++depth_ > 50) fail("groups nested too deeply");
    std::vector<Sequence> alternatives(1);
    while (more() && text_[at_] != ')') {
      if (take("|")) {
        alternatives.emplace_back();
        continue;
      }
      Node node = parse_atom(ignore_case);
      parse_quantifier(node);
      alternatives.back().push_back(std::move(node));
    }
    --depth_;
    return alternatives;
  }

  Node parse_atom(bool ignore_case) {
    Node node;
    if (take("(")) {
      bool inner_case = ignore_case;
      node.kind = Node::Kind::kGroup;
      if (take("?")) {
        if (take(":")) {
        } else if (take("i:")) inner_case = true;
        else if (take("=")) node.kind = Node::Kind::kLookahead;
        else if (take("!")) node.kind = Node::Kind::kNotLookahead;
        else fail("a kind of group that is not supported");
      }
      node.alternatives = parse_alternatives(inner_case);
      if (!take(")")) fail("a '(' without its ')'");
      return node;
    }
    if (take("^") || take("\\A")) {
      node.kind = Node::Kind::kTextStart;
      return node;
    }
    if (take("$") || take("\\z")) {
      node.kind = Node::Kind::kTextEnd;
      return node;
    }
    node.set.ignore_case = ignore_case;
    if (take("[")) {
      parse_class(node.set);
    } else if (take(".")) {
      node.set.ranges.emplace_back('\n', '\n');
      node.set.negated = true;
    } else if (take("\\")) {
      parse_escape(node.set);
    } else {
      const CodePoint v = next();
      if (v == '*' || v == '+' || v == '?') fail("a quantifier with nothing before it");
      node.set.ranges.emplace_back(v, v);
    }
    node.set.finish();
    return node;
  }

  // After the backslash: adds to `set`. Returns the code point where the escape is one character.
  std::optional<CodePoint> parse_escape(CharSet& set) {
    const CodePoint c = next();
    const auto add = [&](CharSet part) {
      part.finish();
      set.parts.push_back(std::move(part));
    };
    switch (c) {
      case 's': set.spaces = true; return std::nullopt;
      case 'S': add({.spaces = true, .negated = true}); return std::nullopt;
      case 'd': set.categories |= category_mask("Nd"); return std::nullopt;
      case 'D': add({.categories = category_mask("Nd"), .negated = true}); return std::nullopt;
      case 'w':
      case 'W':
        add({.categories = category_mask("L") | category_mask("M") | category_mask("N") | category_mask("Pc"),
             .negated = c == 'W'});
        return std::nullopt;
      case 'p':
      case 'P': {
        std::string name;
        if (take("{")) {
          while (!take("}")) append_utf8(name, next());
        } else {
          append_utf8(name, next());
        }
        bool negated = c == 'P';
        if (!name.empty() && name[0] == '^') negated = !negated, name.erase(0, 1);
        const std::uint32_t mask = category_mask(name);
        if (mask == 0) fail("the property " + name + ", which is not a general category,");
        if (negated) add({.categories = mask, .negated = true});
        else set.categories |= mask;
        return std::nullopt;
      }
      default: break;
    }
    const CodePoint v = escaped_character(c);
    set.ranges.emplace_back(v, v);
    return v;
  }

  CodePoint escaped_character(CodePoint c) {
    switch (c) {
      case 'n': return '\n';
      case 'r': return '\r';
      case 't': return '\t';
      case 'f': return '\f';
      case 'v': return '\v';
      case 'x': return take("{") ? hexadecimal(1, 6, true) : hexadecimal(2, 2, false);
      case 'u': return hexadecimal(4, 4, false);
      default: break;
    }
    const bool alphanumeric = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (alphanumeric) fail("an escape that is not supported");
    return c;
  }

  CodePoint hexadecimal(int least, int most, bool braced) {
    CodePoint value = 0;
    int digits = 0;
    while (digits < most && more()) {
      const char c = text_[at_];
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) break;
      value = value * 16 + static_cast<CodePoint>(digit);
      ++digits, ++at_;
    }
    if (digits < least || (braced && !take("}")) || value > 0x10FFFF) fail("a hexadecimal escape that cannot be read");
    return value;
  }

  void parse_class(CharSet& set) {
    set.negated = take("^");
    bool first = true;
    while (true) {
      if (!more()) fail("a '[' without its ']'");
      if (!first && take("]")) return;
      first = false;
      if (take("&&") || text_.substr(at_, 2) == "[:") fail("a kind of class that is not supported");
      if (take("[")) {
        CharSet inner;
        parse_class(inner);
        inner.finish();
        set.parts.push_back(std::move(inner));
        continue;
      }
      std::optional<CodePoint> from;
      if (take("\\")) {
        from = parse_escape(set);
      } else {
        from = next();
        set.ranges.emplace_back(*from, *from);
      }
      if (from && text_.substr(at_, 1) == "-" && text_.substr(at_, 2) != "-]" && at_ + 1 < text_.size()) {
        ++at_;
        const CodePoint to = take("\\") ? escaped_character(next()) : next();
        if (to < *from) fail("a range that runs backwards");
        set.ranges.back().second = to;
      }
    }
  }

  void parse_quantifier(Node& node) {
    const std::size_t before = at_;
    if (take("*")) node.least = 0, node.most = kUnbounded;
    else if (take("+")) node.least = 1, node.most = kUnbounded;
    else if (take("?")) node.least = 0, node.most = 1;
    else if (take("{")) {
      node.least = number();
      node.most = node.least;
      if (take(",")) node.most = text_.substr(at_, 1) == "}" ? kUnbounded : number();
      if (!take("}") || node.most < node.least) fail("a quantifier that cannot be read");
    }
    if (at_ == before) return;
    if (take("?")) node.mode = Mode::kLazy;
    else if (take("+")) node.mode = Mode::kPossessive;
    if (node.kind != Node::Kind::kSet && (node.kind != Node::Kind::kGroup || node.most > 64))
      fail("a quantifier over a group that may repeat without bound");
  }

  int number() {
    int value = 0, digits = 0;
    while (more() && text_[at_] >= '0' && text_[at_] <= '9') {
      if (++digits > 4) fail("a repetition count that is too large");
      value = value * 10 + (text_[at_++] - '0');
    }
    if (digits == 0) fail("a quantifier that cannot be read");
    return value;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

struct Pattern::Program {
  std::vector<Sequence> alternatives;
};

namespace {

// What is left to match after the alternatives of a group: more of its repeats, then what follows it.
struct Rest {
  const Sequence* sequence;
  std::size_t index;  // of the group
  int repeats;        // already matched, the current one included
  const Rest* outer;
};

class Matcher {
 public:
  explicit Matcher(std::string_view text) : text_(text) {}

  std::size_t any(const std::vector<Sequence>& alternatives, std::size_t at, const Rest* rest) const {
    for (const Sequence& sequence : alternatives)
      if (const std::size_t end = run(sequence, 0, at, rest); end != kNoMatch) return end;
    return kNoMatch;
  }

 private:
  std::size_t run(const Sequence& sequence, std::size_t index, std::size_t at, const Rest* rest) const {
    if (index == sequence.size()) {
      if (rest == nullptr) return at;
      return repeat_group(*rest->sequence, rest->index, at, rest->repeats, rest->outer);
    }
    const Node& node = sequence[index];
    switch (node.kind) {
      case Node::Kind::kTextStart: return at == 0 ? run(sequence, index + 1, at, rest) : kNoMatch;
      case Node::Kind::kTextEnd: return at == text_.size() ? run(sequence, index + 1, at, rest) : kNoMatch;
      case Node::Kind::kLookahead:
        return any(node.alternatives, at, nullptr) != kNoMatch ? run(sequence, index + 1, at, rest) : kNoMatch;
      case Node::Kind::kNotLookahead:
        return any(node.alternatives, at, nullptr) == kNoMatch ? run(sequence, index + 1, at, rest) : kNoMatch;
      case Node::Kind::kGroup: return repeat_group(sequence, index, at, 0, rest);
      case Node::Kind::kSet: break;
    }
    if (node.most == 1 && node.least == 1) {
      const std::size_t end = one(node.set, at);
      return end == kNoMatch ? kNoMatch : run(sequence, index + 1, end, rest);
    }
    return repeat_set(node, sequence, index, at, rest);
  }

  std::size_t one(const CharSet& set, std::size_t at) const {
    if (at >= text_.size()) return kNoMatch;
    const Decoded d = decode_at(text_, at);
    return set.contains(d.value) ? at + d.length : kNoMatch;
  }

  std::size_t repeat_set(const Node& node, const Sequence& sequence, std::size_t index, std::size_t at,
                         const Rest* rest) const {
    int count = 0;
    std::size_t end = at;
    const auto step = [&] {
      const std::size_t next = one(node.set, end);
      if (next == kNoMatch) return false;
      end = next;
      ++count;
      return true;
    };
    const int first_stop = node.mode == Mode::kLazy ? node.least : node.most;
    while (count < first_stop && step()) {
    }
    if (count < node.least) return kNoMatch;
    const bool last = index + 1 == sequence.size() && rest == nullptr;
    while (true) {
      if (last && node.mode != Mode::kLazy) return end;
      const std::size_t result = run(sequence, index + 1, end, rest);
      if (result != kNoMatch || node.mode == Mode::kPossessive) return result;
      if (node.mode == Mode::kLazy) {
        if (count >= node.most || !step()) return kNoMatch;
      } else {
        if (count == node.least) return kNoMatch;
        --count;
        do --end;
        while ((static_cast<unsigned char>(text_[end]) & 0xC0) == 0x80);
      }
    }
  }

  std::size_t repeat_group(const Sequence& sequence, std::size_t index, std::size_t at, int done,
                           const Rest* rest) const {
    const Node& node = sequence[index];
    if (node.mode == Mode::kPossessive) {
      for (int i = 0; i < node.most; ++i) {
        const std::size_t end = any(node.alternatives, at, nullptr);
        if (end == kNoMatch) {
          if (i < node.least) return kNoMatch;
          break;
        }
        at = end;
      }
      return run(sequence, index + 1, at, rest);
    }
    if (node.mode == Mode::kLazy && done >= node.least)
      if (const std::size_t end = run(sequence, index + 1, at, rest); end != kNoMatch) return end;
    if (done < node.most) {
      const Rest again{&sequence, index, done + 1, rest};
      if (const std::size_t end = any(node.alternatives, at, &again); end != kNoMatch) return end;
    }
    if (node.mode == Mode::kLazy || done < node.least) return kNoMatch;
    return run(sequence, index + 1, at, rest);
  }

  std::string_view text_;
};

}  // namespace

Pattern::Pattern(std::string_view regex) : program_(std::make_unique<Program>()) {
  if (!is_utf8(regex)) throw Error("tokenizer_unsupported", "", "a Split pattern is not valid UTF-8");
  program_->alternatives = Parser(regex).whole();
}
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

std::optional<std::pair<std::size_t, std::size_t>> Pattern::find(std::string_view text, std::size_t from) const {
  const Matcher matcher(text);
  for (std::size_t at = from; at < text.size(); at += decode_at(text, at).length) {
    const std::size_t end = matcher.any(program_->alternatives, at, nullptr);
    if (end != kNoMatch && end > at) return std::pair{at, end};
  }
  return std::nullopt;
}

}  // namespace shardfit::tokenizer
