#include "huggingface_config.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace pipewright::scenario {

using Json = nlohmann::json;

UsageError HfConfig::error(const std::string& key, const std::string& message, const Strings& allowed,
                           const std::string& nearest) const {
  // What is wrong beside a missing number may be wrong for the number that stands in for it.
  if (!missing_.empty()) return {{path_, 0}, fmt::format("{}", fmt::join(missing_, ", ")), "missing"};
  return {{path_, line_of(key)}, above_ + written(key), message, allowed, nearest};
}

void HfConfig::require() const {
  if (!missing_.empty()) throw error(missing_.front(), "missing");
}

HfConfig HfConfig::within(const std::string& key) const {
  HfConfig inner(path_, text_, json_.at(key));
  inner.above_ = above_ + key + ".";
  return inner;
}

int HfConfig::line_of(const std::string& key) const {
  std::size_t at = 0;
  if (!above_.empty()) at = text_.find('"' + above_.substr(0, above_.size() - 1) + '"');
  if (json_.contains(key))
    at = text_.find('"' + written(key) + '"', at);
  else if (above_.empty())
    return 0;
  if (at == std::string::npos) return 0;
  return 1 + static_cast<int>(std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
}

const nlohmann::json* HfConfig::object(const std::string& key) const {
  if (!has(key)) return nullptr;
  if (!json_.at(key).is_object()) throw error(key, "expected an object, found " + json_.at(key).dump().substr(0, 60));
  return &json_.at(key);
}

const nlohmann::json* HfConfig::list(const std::string& key) const {
  if (!has(key)) return nullptr;
  if (!json_.at(key).is_array()) throw error(key, "expected a list, found " + json_.at(key).dump().substr(0, 60));
  return &json_.at(key);
}

bool HfConfig::has(const std::string& key) const {
  read_.insert(key);
  return json_.contains(key) && !json_.at(key).is_null();
}

Int HfConfig::integer(const std::string& key, Int least, Int most) const {
  if (!has(key)) {
    lacks(key);
    return least;
  }
  const Json& value = json_.at(key);
  if (!value.is_number_integer()) throw error(key, "expected an integer, found " + value.dump().substr(0, 60));
  const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most)
                                               : value.get<Int>() >= least;
  if (!fits || value.get<Int>() < least) {
    throw error(key, value.dump() + " is out of range", {fmt::format("{} to {}", least, most)});
  }
  return value.get<Int>();
}

OptInt HfConfig::optional_integer(const std::string& key, Int least) const {
  return has(key) ? OptInt(integer(key, least)) : std::nullopt;
}

double HfConfig::number(const std::string& key, double otherwise) const {
  if (!has(key)) return otherwise;
  const Json& value = json_.at(key);
  if (!value.is_number()) throw error(key, "expected a number, found " + value.dump().substr(0, 60));
  const auto found = value.get<double>();
  if (!(found >= 0 && found <= 1e12)) throw error(key, value.dump() + " is out of range", {"0 to 1e12"});
  return found;
}

bool HfConfig::boolean(const std::string& key, bool otherwise) const {
  if (!has(key)) return otherwise;
  if (!json_.at(key).is_boolean())
    throw error(key, "expected true or false, found " + json_.at(key).dump().substr(0, 60));
  return json_.at(key).get<bool>();
}

Ints HfConfig::integers(const std::string& key, Int count) const {
  Ints result;
  if (!has(key)) return result;
  const Json& list = json_.at(key);
  if (!list.is_array()) throw error(key, "expected a list, found " + list.dump().substr(0, 60));
  for (const Json& each : list) {
    if (!each.is_number_integer()) throw error(key, "expected integers, found " + each.dump().substr(0, 60));
    result.push_back(each.get<Int>());
  }
  if (!result.empty() && static_cast<Int>(result.size()) != count)
    throw error(key, fmt::format("{} entries for {} layers", result.size(), count));
  return result;
}

Strings HfConfig::strings(const std::string& key, const Strings& allowed) const {
  Strings result;
  if (!has(key)) return result;
  const Json& list = json_.at(key);
  if (!list.is_array()) throw error(key, "expected a list, found " + list.dump().substr(0, 60));
  for (const Json& each : list) {
    const std::string word = each.is_string() ? each.get<std::string>() : each.dump().substr(0, 60);
    if (std::ranges::find(allowed, word) == allowed.end())
      throw error(key, "\"" + word + "\" is not modelled", allowed, nearest_name(word, allowed));
    result.push_back(word);
  }
  return result;
}

std::string HfConfig::string(const std::string& key, const std::string& otherwise) const {
  if (!has(key)) return otherwise;
  if (!json_.at(key).is_string()) throw error(key, "expected a string, found " + json_.at(key).dump().substr(0, 60));
  return json_.at(key).get<std::string>();
}

}  // namespace pipewright::scenario
