#include "pipewright/regex.hpp"

#include <regex>
#include <stdexcept>

namespace pipewright {

struct Regex::Compiled {
  std::regex regex;
};

namespace {

std::regex compile(const std::string& expression, Regex::Case letters) {
  auto flags = std::regex::ECMAScript | std::regex::optimize;
  if (letters == Regex::Case::ignored) flags |= std::regex::icase;
  try {
    return std::regex(expression, flags);
  } catch (const std::regex_error& error) {
    throw std::invalid_argument(error.what());
  }
}

}  // namespace

Regex::Regex(const std::string& expression, Case letters)
    : compiled_(std::make_shared<Compiled>(Compiled{compile(expression, letters)})) {}

bool Regex::found_in(std::string_view text) const {
  return std::regex_search(text.begin(), text.end(), compiled_->regex);
}

std::vector<std::string> Regex::first_in(std::string_view text) const {
  std::match_results<std::string_view::const_iterator> match;
  std::vector<std::string> groups;
  if (!std::regex_search(text.begin(), text.end(), match, compiled_->regex)) return groups;
  for (const auto& group : match) groups.push_back(group.str());
  return groups;
}

}  // namespace pipewright
