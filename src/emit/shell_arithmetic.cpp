// Arithmetic of a shell script: $(( )), (( )), let, subscripts.
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "shell_words.hpp"

namespace pipewright::emit {

namespace {

/// Integers with the precedence and the assignments of C; names are variables.
class Arithmetic {
 public:
  Arithmetic(std::string_view text, ShellState& state, int depth) : text_(text), state_(state), depth_(depth) {}

  std::optional<std::int64_t> run() {
    const auto value = sequence();
    skip();
    return at_ == text_.size() ? value : std::nullopt;
  }

 private:
  using Number = std::optional<std::int64_t>;

  void skip() {
    while (at_ < text_.size() && (blank(text_[at_]) || text_[at_] == '\n')) ++at_;
  }
  bool take(std::string_view op) {
    skip();
    if (!text_.substr(at_).starts_with(op)) return false;
    at_ += op.size();
    return true;
  }
  std::string_view take_name() {
    skip();
    const auto begin = at_;
    if (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) return {};
    while (at_ < text_.size() && name_char(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  Number sequence() {
    Number value = assignment();
    while (take(",")) value = assignment();
    return value;
  }

  /// NAME = ..., NAME += ..., or a condition.
  Number assignment() {
    if (++parts_ > most_parts) return {};
    const auto begin = at_;
    if (const auto name = take_name(); !name.empty())
      for (const std::string_view op : {"=", "+=", "-=", "*=", "/=", "%="}) {
        if (!take(op)) continue;
        if (op == "=" && at_ < text_.size() && text_[at_] == '=') break;
        Number value = assignment();
        if (op != "=") value = apply(variable(name), op.substr(0, 1), value);
        return store(name, value);
      }
    at_ = begin;
    const Number asked = level(0);
    if (!take("?")) return asked;
    const Number one = quietly(!asked || *asked == 0, [&] { return sequence(); });
    if (!take(":")) return {};
    const Number other = quietly(!asked || *asked != 0, [&] { return assignment(); });
    return !asked ? asked : *asked != 0 ? one : other;
  }

  template <class Part>
  Number quietly(bool quiet, const Part& part) {
    const int before = quiet_;
    quiet_ += quiet;
    const Number value = part();
    quiet_ = before;
    return value;
  }

  Number store(std::string_view name, Number value) {
    if (quiet_ > 0) return value;
    if (value)
      assign_scalar(state_, std::string(name), {std::to_string(*value), 0});
    else
      forget(state_, std::string(name));
    return value;
  }

  Number level(std::size_t at_least) {
    static constexpr std::array<std::array<std::string_view, 4>, 11> rows = {{{"||"},
                                                                              {"&&"},
                                                                              {"|"},
                                                                              {"^"},
                                                                              {"&"},
                                                                              {"==", "!="},
                                                                              {"<=", ">=", "<", ">"},
                                                                              {"<<", ">>"},
                                                                              {"+", "-"},
                                                                              {"*", "/", "%"},
                                                                              {"**"}}};
    if (at_least == rows.size()) return unary();
    Number left = level(at_least + 1);
    for (;;) {
      std::string_view op;
      for (const auto candidate : rows[at_least])
        if (op.empty() && !candidate.empty() && take(candidate)) op = candidate;
      if ((op == "|" || op == "&") && at_ < text_.size() && text_[at_] == op[0]) {  // || and && bind less
        --at_;
        op = {};
      }
      if (op.empty()) return left;
      const bool decided = !left || (op == "||" && *left != 0) || (op == "&&" && *left == 0);
      const Number right =
          quietly((op == "||" || op == "&&") && decided, [&] { return level(op == "**" ? at_least : at_least + 1); });
      left = left && (op == "||" || op == "&&") && decided ? Number(*left != 0) : apply(left, op, right);
    }
  }

  static Number power(std::int64_t a, std::int64_t b) {
    if (b < 0) return {};
    if (a == 0 || a == 1) return b == 0 ? 1 : a;
    if (a == -1) return b % 2 == 0 ? 1 : -1;
    std::int64_t result = 1;
    for (; b > 0; --b)
      if (__builtin_mul_overflow(result, a, &result)) return {};
    return result;
  }

  static Number apply(Number a, std::string_view op, Number b) {
    if (!a || !b) return {};
    std::int64_t result = 0;
    if (op == "+") return __builtin_add_overflow(*a, *b, &result) ? Number() : result;
    if (op == "-") return __builtin_sub_overflow(*a, *b, &result) ? Number() : result;
    if (op == "*") return __builtin_mul_overflow(*a, *b, &result) ? Number() : result;
    if (op == "**") return power(*a, *b);
    if (op == "/" || op == "%") {
      if (*b == 0 || (*b == -1 && *a == INT64_MIN)) return {};
      return op == "/" ? *a / *b : *a % *b;
    }
    if (op == "<<" || op == ">>") {
      if (*b < 0 || *b > 62) return {};
      return op == ">>" ? *a >> *b : apply(a, "*", std::int64_t{1} << *b);
    }
    return op == "||"   ? *a != 0 || *b != 0
           : op == "&&" ? *a != 0 && *b != 0
           : op == "|"  ? *a | *b
           : op == "^"  ? *a ^ *b
           : op == "&"  ? *a & *b
           : op == "==" ? *a == *b
           : op == "!=" ? *a != *b
           : op == "<=" ? *a <= *b
           : op == ">=" ? *a >= *b
           : op == "<"  ? *a < *b
                        : *a > *b;
  }

  Number unary() {
    if (++parts_ > most_parts) return {};
    for (const std::string_view op : {"++", "--"})
      if (take(op)) {
        const auto name = take_name();
        return name.empty() ? Number() : store(name, apply(variable(name), op.substr(0, 1), 1));
      }
    if (take("-")) return apply(0, "-", unary());
    if (take("+")) return unary();
    if (take("~")) return apply(apply(0, "-", unary()), "-", 1);
    if (take("!")) {
      const Number value = unary();
      return value ? Number(*value == 0) : value;
    }
    if (take("(")) {
      const Number value = sequence();
      return take(")") ? value : Number();
    }
    if (take("${")) {  // what nothing sets
      at_ = std::min(text_.find('}', at_), text_.size() - 1) + 1;
      return {};
    }
    if (const auto name = take_name(); !name.empty()) {
      const Number value = variable(name);
      for (const std::string_view op : {"++", "--"})
        if (take(op)) {
          store(name, apply(value, op.substr(0, 1), 1));
          break;
        }
      return value;
    }
    const auto begin = at_;
    while (at_ < text_.size() && name_char(text_[at_])) ++at_;
    auto digits = text_.substr(begin, at_ - begin);
    int base = 10;
    if (digits.size() > 1 && digits[0] == '0') {
      base = digits[1] == 'x' || digits[1] == 'X' ? 16 : 8;
      digits.remove_prefix(base == 16 ? 2 : 1);
    }
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    return error == std::errc() && end == digits.data() + digits.size() ? Number(value) : Number();
  }

  Number variable(std::string_view name) {
    const auto found = state_.scalars.find(std::string(name));
    if (found == state_.scalars.end() || depth_ > 10) return {};
    const std::string text = found->second.text;
    return text.empty() ? Number(0) : Arithmetic(text, state_, depth_ + 1).run();
  }

  static constexpr int most_parts = 400;  ///< of an expression
  std::string_view text_;
  ShellState& state_;
  int depth_;
  std::size_t at_ = 0;
  int parts_ = 0, quiet_ = 0;
};

}  // namespace

std::optional<std::int64_t> arithmetic(std::string_view expression, ShellState& state) {
  return Arithmetic(expression, state, 0).run();
}

}  // namespace pipewright::emit
