// Damage done to good inputs, the same at every run: bytes, pieces and words that readers trip over.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>

namespace pipewright::test {

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  std::size_t below(std::size_t n) { return n == 0 ? 0 : static_cast<std::size_t>(random_() % n); }

  /// One to five changes of `text`.
  std::string operator()(std::string text) {
    static constexpr std::array<std::string_view, 36> words = {"0",
                                                               "-1",
                                                               "9223372036854775807",
                                                               "-9223372036854775808",
                                                               "18446744073709551616",
                                                               "1e308",
                                                               "nan",
                                                               "inf",
                                                               "1.5",
                                                               "\"",
                                                               "'",
                                                               "\\",
                                                               "\n",
                                                               "\r\n",
                                                               "${",
                                                               "$((1/0))",
                                                               "$(",
                                                               "`",
                                                               "[[[[[[[[",
                                                               "]",
                                                               "{",
                                                               "}",
                                                               "(",
                                                               ")*9223372036854775807",
                                                               "null",
                                                               "true",
                                                               ";",
                                                               "|",
                                                               "&&",
                                                               "#",
                                                               ": ",
                                                               "- ",
                                                               "\xff",
                                                               "\t",
                                                               "=",
                                                               "<<EOF"};
    for (std::size_t changes = 1 + below(5); changes > 0; --changes) {
      const std::size_t at = below(text.size() + 1), length = below(std::min<std::size_t>(40, text.size() - at) + 1);
      switch (below(5)) {
        case 0:
          text.erase(at, length);
          break;
        case 1:
          text.insert(at, words[below(words.size())]);
          break;
        case 2:
          text.replace(at, length, words[below(words.size())]);
          break;
        case 3:
          text.insert(below(text.size() + 1), text.substr(at, length));
          break;
        default:
          if (at < text.size()) text[at] = static_cast<char>(random_());
      }
    }
    return text;
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace pipewright::test
