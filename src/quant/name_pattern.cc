// Every part of an expression maps the set of positions at which it may begin to the set at which it may end.
#include "quant/name_pattern.h"

#include <algorithm>
#include <array>

namespace inflight::quant {

struct NamePattern::Node {
  enum Kind { kChoice, kSequence, kRepeat, kLetters, kStart, kEnd, kWordEdge, kNoWordEdge, kAhead, kNotAhead } kind = kSequence;
  std::vector<Node> parts;
  int least = 0, most = -1;            // kRepeat; most -1: no end
  std::array<bool, 256> letters = {};  // kLetters
};

namespace {

using Node = NamePattern::Node;
using Places = std::vector<bool>;  // [name.size() + 1]

bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

Places ends(const Node& node, std::string_view name, const Places& starts);

Places repeated(const Node& node, std::string_view name, Places at) {
  Places all = at;
  const auto any = [](const Places& places) { return std::ranges::find(places, true) != places.end(); };
  for (int i = 0; i < node.least; ++i) {
    Places next = ends(node.parts[0], name, at);
    if (next == at) break;
    at = std::move(next);
    if (!any(at)) return at;
  }
  all = at;
  for (int i = node.least; node.most < 0 || i < node.most; ++i) {
    at = ends(node.parts[0], name, at);
    bool grew = false;
    for (std::size_t p = 0; p < at.size(); ++p)
      if (at[p] && !all[p]) all[p] = grew = true;
    if (!grew) break;  // places already seen lead nowhere new: what they lead to is counted from when they were first seen
  }
  return all;
}

Places ends(const Node& node, std::string_view name, const Places& starts) {
  Places out(starts.size(), false);
  const auto edge = [&](std::size_t p) { return (p > 0 && is_word(name[p - 1])) != (p < name.size() && is_word(name[p])); };
  switch (node.kind) {
    case Node::kChoice:
      for (const Node& part : node.parts) {
        const Places one = ends(part, name, starts);
        for (std::size_t p = 0; p < out.size(); ++p) out[p] = out[p] || one[p];
      }
      return out;
    case Node::kSequence:
      out = starts;
      for (const Node& part : node.parts) out = ends(part, name, out);
      return out;
    case Node::kRepeat: return repeated(node, name, starts);
    case Node::kLetters:
      for (std::size_t p = 0; p < name.size(); ++p) out[p + 1] = starts[p] && node.letters[static_cast<unsigned char>(name[p])];
      return out;
    case Node::kStart: out[0] = starts[0]; return out;
    case Node::kEnd: out[name.size()] = starts[name.size()]; return out;
    case Node::kWordEdge:
    case Node::kNoWordEdge:
      for (std::size_t p = 0; p < out.size(); ++p) out[p] = starts[p] && edge(p) == (node.kind == Node::kWordEdge);
      return out;
    case Node::kAhead:
    case Node::kNotAhead:
      for (std::size_t p = 0; p < out.size(); ++p) {
        if (!starts[p]) continue;
        Places here(out.size(), false);
        here[p] = true;
        const Places after = ends(node.parts[0], name, here);
        out[p] = (std::ranges::find(after, true) != after.end()) == (node.kind == Node::kAhead);
      }
      return out;
  }
  return out;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<Node> whole() {
    Node node = TRY(choice(0));
    if (at_ != text_.size()) return wrong("\")\" without \"(\"");
    return node;
  }

 private:
  static constexpr int kDeepest = 50, kLongestCount = 1000;

  std::unexpected<Error> wrong(std::string_view what) const {
    return fail(Code::kInvalidArgument, "regular expression \"{}\": {} at letter {}", text_, what, at_ + 1);
  }
  bool more() const { return at_ < text_.size(); }
  bool take(std::string_view token) {
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }

  Result<Node> choice(int depth) {
    if (depth > kDeepest) return wrong("too many nested groups");
    Node node{.kind = Node::kChoice, .parts = {}, .letters = {}};
    do {
      Node sequence{.kind = Node::kSequence, .parts = {}, .letters = {}};
      while (more() && text_[at_] != '|' && text_[at_] != ')') {
        Node atom = TRY(one(depth));
        sequence.parts.push_back(TRY(counted(std::move(atom))));
      }
      node.parts.push_back(std::move(sequence));
    } while (take("|"));
    return node;
  }

  Result<Node> counted(Node atom) {
    for (int stacked = 0; more(); ++stacked) {
      int least = 0, most = -1;
      if (take("*")) {
      } else if (take("+")) {
        least = 1;
      } else if (take("?")) {
        most = 1;
      } else if (text_[at_] == '{') {
        ++at_;
        least = TRY(count());
        most = least;
        if (take(",")) most = more() && text_[at_] == '}' ? -1 : TRY(count());
        if (!take("}")) return wrong("expected \"}\"");
        if (most >= 0 && most < least) return wrong("a count whose end is below its start");
      } else {
        return atom;
      }
      if (stacked > 0) return wrong("two counts in a row");
      if (atom.kind != Node::kLetters && atom.kind != Node::kChoice) return wrong("nothing to repeat");
      Node node{.kind = Node::kRepeat, .parts = {}, .least = least, .most = most, .letters = {}};
      node.parts.push_back(std::move(atom));
      atom = std::move(node);
      (void)take("?");  // lazy: the same places
    }
    return atom;
  }

  Result<int> count() {
    int value = 0;
    const std::size_t from = at_;
    while (more() && text_[at_] >= '0' && text_[at_] <= '9' && value <= kLongestCount) value = value * 10 + (text_[at_++] - '0');
    if (at_ == from || value > kLongestCount) return wrong("expected a count of at most 1000");
    return value;
  }

  Result<Node> one(int depth) {
    Node node{.kind = Node::kLetters, .parts = {}, .letters = {}};
    if (take("(")) {
      Node::Kind kind = Node::kChoice;
      if (take("?=")) kind = Node::kAhead;
      else if (take("?!")) kind = Node::kNotAhead;
      else if (take("?P<")) {
        while (more() && is_word(text_[at_])) ++at_;
        if (!take(">")) return wrong("expected \">\"");
      } else if (!take("?:") && take("?")) return wrong("an extension that is not known here");
      Node inner = TRY(choice(depth + 1));
      if (!take(")")) return wrong("\"(\" without \")\"");
      if (kind == Node::kChoice) return inner;
      node.kind = kind;
      node.parts.push_back(std::move(inner));
      return node;
    }
    if (take("[")) return letters();
    if (take("^")) node.kind = Node::kStart;
    else if (take("$")) node.kind = Node::kEnd;
    else if (take(".")) {
      node.letters.fill(true);
      node.letters['\n'] = false;
    } else if (take("\\")) {
      if (!more()) return wrong("nothing after \"\\\"");
      switch (text_[at_]) {
        case 'A': node.kind = Node::kStart; break;
        case 'Z': node.kind = Node::kEnd; break;
        case 'b': node.kind = Node::kWordEdge; break;
        case 'B': node.kind = Node::kNoWordEdge; break;
        default: TRY(escaped(node.letters)); return node;
      }
      ++at_;
    } else if (text_[at_] == '*' || text_[at_] == '+' || text_[at_] == '?') {
      return wrong("nothing to repeat");
    } else {
      node.letters[static_cast<unsigned char>(text_[at_++])] = true;
    }
    return node;
  }

  // After "\": adds what is meant. Returns the letter, or -1 where it is a class.
  Result<int> escaped(std::array<bool, 256>& set) {
    const char c = text_[at_];
    const char lower = static_cast<char>(c | 0x20);
    if (lower == 'd' || lower == 'w' || lower == 's') {
      for (int i = 0; i < 256; ++i) {
        const char letter = static_cast<char>(i);
        const bool in = lower == 'd' ? letter >= '0' && letter <= '9' : lower == 'w' ? is_word(letter) : letter == ' ' || (letter >= '\t' && letter <= '\r');
        if (in == (c == lower)) set[static_cast<std::size_t>(i)] = true;
      }
      ++at_;
      return -1;
    }
    if (is_word(c) && c != '_') return wrong("an escape that is not known here");
    set[static_cast<unsigned char>(c)] = true;
    ++at_;
    return static_cast<unsigned char>(c);
  }

  Result<Node> letters() {
    Node node{.kind = Node::kLetters, .parts = {}, .letters = {}};
    const bool inverted = take("^");
    bool first = true;
    while (more() && (first || text_[at_] != ']')) {
      first = false;
      int low = static_cast<unsigned char>(text_[at_]);
      if (take("\\")) {
        if (!more()) break;
        low = TRY(escaped(node.letters));
      } else {
        node.letters[static_cast<std::size_t>(low)] = true;
        ++at_;
      }
      if (low < 0 || at_ + 1 >= text_.size() || text_[at_] != '-' || text_[at_ + 1] == ']') continue;
      ++at_;
      int high = static_cast<unsigned char>(text_[at_]);
      if (take("\\")) {
        if (!more()) break;
        high = TRY(escaped(node.letters));
      } else {
        ++at_;
      }
      if (high < low) return wrong("a range whose end is below its start");
      for (int i = low; i <= high; ++i) node.letters[static_cast<std::size_t>(i)] = true;
    }
    if (!take("]")) return wrong("\"[\" without \"]\"");
    if (inverted)
      for (bool& in : node.letters) in = !in;
    return node;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

Places ends_of(const Node& root, std::string_view name) {
  Places starts(name.size() + 1, false);
  starts[0] = true;
  return ends(root, name, starts);
}

}  // namespace

Result<NamePattern> NamePattern::parse(std::string_view text) {
  constexpr std::size_t kLongest = 4096;
  if (text.size() > kLongest) return fail(Code::kInvalidArgument, "a regular expression of {} letters; at most {} are read", text.size(), kLongest);
  NamePattern pattern;
  pattern.root_ = std::make_shared<const Node>(TRY(Parser(text).whole()));
  return pattern;
}

bool NamePattern::matches(std::string_view name) const {
  const Places at = ends_of(*root_, name);
  return std::ranges::find(at, true) != at.end();
}

bool NamePattern::matches_components(std::string_view name) const {
  const Places at = ends_of(*root_, name);
  for (std::size_t p = 0; p < at.size(); ++p)
    if (at[p] && (p == name.size() || name[p] == '.' || (p > 0 && name[p - 1] == '.'))) return true;
  return false;
}

}  // namespace inflight::quant
