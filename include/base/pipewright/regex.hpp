// Regular expressions (ECMAScript), compiled in one object: <regex> costs each file that includes it seconds.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace pipewright {

class Regex {
 public:
  enum class Case { exact, ignored };

  /// Throws std::invalid_argument if `expression` is not a regular expression.
  explicit Regex(const std::string& expression, Case letters = Case::exact);

  bool found_in(std::string_view text) const;
  /// The first match and its groups ("" for a group that took no part); empty if there is none.
  std::vector<std::string> first_in(std::string_view text) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace pipewright
