#include "training.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "pipewright/report.hpp"

namespace pipewright::cli {

double Training::tokens() const {
  double number = 0;
  const char* end = text_.data() + text_.size();
  const auto read = std::from_chars(text_.data(), end, number);
  const std::string_view unit(read.ptr, static_cast<std::size_t>(end - read.ptr));
  const double scale = unit.empty()  ? 1
                       : unit == "K" ? 1e3
                       : unit == "M" ? 1e6
                       : unit == "B" ? 1e9
                       : unit == "T" ? 1e12
                                     : 0;
  const double tokens = number * scale;
  if (read.ec != std::errc() || !(tokens >= 1 && tokens <= 1e18)) {
    throw UsageError({"command line", 0}, "--tokens", "\"" + text_ + "\" is no number of tokens",
                     {"1 to 1e18, also with K, M, B or T: 15T"});
  }
  return tokens;
}

Training::Cost Training::cost(const scenario::Scenario& s, std::int64_t step_ns) const {
  const double a_step = static_cast<double>(s.settings.global_batch_size) * static_cast<double>(s.model.seq_length);
  const double steps = std::ceil(tokens() / a_step);
  const double seconds = steps * static_cast<double>(step_ns) / 1e9;
  return {tokens(), steps, seconds / 86400, seconds / 3600 * static_cast<double>(s.cluster.num_gpus)};
}

std::string Training::line(const scenario::Scenario& s, std::int64_t step_ns) const {
  const Cost c = cost(s, step_ns);
  return fmt::format("{} tokens: {} steps, {:.1f} days, {} GPU-hours at this pace, without restarts and checkpoints\n",
                     text_, report::grouped(std::llround(c.steps)), c.days, report::grouped(std::llround(c.gpu_hours)));
}

std::string Training::with(const std::string& json, const scenario::Scenario& s, std::int64_t step_ns) const {
  const Cost c = cost(s, step_ns);
  auto document = nlohmann::ordered_json::parse(json);
  document["training"] = {{"tokens", c.tokens}, {"steps", c.steps}, {"days", c.days}, {"gpu_hours", c.gpu_hours}};
  return document.dump(1) + "\n";
}

}  // namespace pipewright::cli
