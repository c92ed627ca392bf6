#include "ended.hpp"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "pipewright/base.hpp"

namespace pipewright::trial {

void keep_end(const std::string& file, const std::string& command, const Ended& ended) {
  nlohmann::ordered_json end = {{"command", command}, {"exit_status", ended.status}, {"timed_out", ended.timed_out}};
  if (ended.log_bytes) end["log_bytes"] = *ended.log_bytes;
  write_file(file, end.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

std::optional<Ended> kept_end(const std::string& file, const std::string& command) {
  if (!std::filesystem::exists(file)) return std::nullopt;
  const auto end = nlohmann::json::parse(read_file(file), nullptr, false);
  const auto is = [&](const char* key, auto type) { return end.contains(key) && end[key].type() == type; };
  using Type = nlohmann::json::value_t;
  // A disk that is full leaves half of such a file.
  if (!end.is_object() || !is("command", Type::string) || !is("timed_out", Type::boolean) ||
      !end.contains("exit_status") || !end["exit_status"].is_number_integer() || end["command"] != command)
    return std::nullopt;
  Ended result;
  result.status = end["exit_status"].get<int>();
  result.timed_out = end["timed_out"].get<bool>();
  if (is("log_bytes", Type::number_unsigned)) result.log_bytes = end["log_bytes"].get<std::uintmax_t>();
  return result;
}

}  // namespace pipewright::trial
