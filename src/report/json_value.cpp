// Values of settings as JSON.
#include "json_value.hpp"

#include <charconv>

namespace pipewright::report {
namespace {

template <class Number>
bool whole_number(const std::string& text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(' ');
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

}  // namespace

Json value_json(const std::string& text) {
  if (text == "none") return nullptr;
  if (text == "true") return true;
  if (text == "false") return false;
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') {
    Json list = Json::array();
    for (std::size_t begin = 1; begin < text.size() - 1;) {
      const std::size_t end = std::min(text.find(',', begin), text.size() - 1);
      list.push_back(value_json(trimmed(text.substr(begin, end - begin))));
      begin = end + 1;
    }
    return list;
  }
  if (std::int64_t integer = 0; whole_number(text, integer)) return integer;
  if (double number = 0; whole_number(text, number)) return number;
  return text;
}

Json settings_json(const plan::Assignments& settings) {
  Json json = Json::object();
  for (const auto& [name, value] : settings) json[name] = value_json(value);
  return json;
}

Json environment_json(const plan::Assignments& environment) {
  Json json = Json::object();
  for (const auto& [name, value] : environment) json[name] = value;
  return json;
}

}  // namespace pipewright::report
