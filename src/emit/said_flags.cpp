// megatron/training/arguments.py (validate_args), megatron/core/num_microbatches_calculator.py (schedules of batches).
#include "said_flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <sstream>

#include "pipewright/base.hpp"
#include "pipewright/emit.hpp"
#include "pipewright/scenario/io.hpp"

namespace pipewright::emit {
namespace {

/// Flags that are taken one at a time.
struct Exclusive {
  const char *one, *other, *message;
};
constexpr const char* one_source = "A single data source must be provided in training mode, else None";
constexpr Exclusive exclusive[] = {
    {"--step-batch-size-schedule", "--global-batch-size",
     "Cannot specify both --step-batch-size-schedule and --global-batch-size"},
    {"--train-iters", "--train-samples", "expected iteration-based training"},
    {"--train-iters", "--lr-decay-samples", "expected iteration-based learning rate decay"},
    {"--train-iters", "--lr-warmup-samples", "expected iteration-based learning rate warmup"},
    {"--train-samples", "--lr-decay-iters", "expected sample-based learning rate decay"},
    {"--train-samples", "--lr-warmup-iters", "expected sample-based learning rate warmup"},
    {"--data-path", "--mock-data", one_source},
    {"--data-path", "--train-data-path", one_source},
    {"--mock-data", "--train-data-path", one_source},
};

/// 1000, 2.5K, 3M, 4B or 5T.
std::optional<double> number_of(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) return std::nullopt;
  const std::string suffix(end, text.data() + text.size());
  if (suffix.empty()) return value;
  const auto at = std::string_view("KMBT").find(static_cast<char>(std::toupper(static_cast<unsigned char>(suffix[0]))));
  if (suffix.size() > 1 || at == std::string_view::npos) return std::nullopt;
  return value * std::pow(1000.0, static_cast<double>(at + 1));
}

/// The batches of a schedule in the order of their thresholds.
std::vector<double> stepped(const Given& schedule) {
  const auto refuse = [&](const std::string& found) {
    throw UsageError(schedule.where, schedule.name, "expected THRESHOLD:BATCH THRESHOLD:BATCH ..." + found);
  };
  std::string text;
  for (const auto& value : schedule.values) text += value + " ";
  std::ranges::replace(text, ',', ' ');
  std::map<double, double> batches;
  std::istringstream steps(text);
  for (std::string step; steps >> step;) {
    const auto colon = std::min(step.find(':'), step.size());
    const auto threshold = number_of(step.substr(0, colon));
    const auto batch = number_of(step.substr(std::min(colon + 1, step.size())));
    if (!threshold || !batch) refuse(", found \"" + step + '"');
    batches.try_emplace(*threshold, *batch);
  }
  if (batches.empty()) refuse("");
  std::vector<double> out;
  for (const auto& [threshold, batch] : batches) out.push_back(batch);
  return out;
}

/// --rampup-batch-size START INCREMENT SAMPLES: the batches before the full one.
std::vector<double> ramped(const Given& ramp, double whole) {
  std::vector<double> out;
  if (ramp.values.size() != 3) return out;
  const auto start = number_of(ramp.values[0]), increment = number_of(ramp.values[1]);
  constexpr std::size_t most = 1U << 16U;
  if (start && increment && *start >= 1 && *increment >= 1)
    for (double batch = *start; batch < whole && out.size() < most; batch += *increment) out.push_back(batch);
  return out;
}

/// What Megatron says of a batch that training passes through; empty: it runs.
std::string refusal(scenario::Scenario s, double batch) {
  try {
    scenario::check(s);
  } catch (const UsageError&) {
    return {};  // not of this batch alone
  }
  try {
    s.settings.global_batch_size = static_cast<scenario::Int>(batch);
    scenario::check(s);
  } catch (const UsageError& e) {
    return e.message();
  }
  return {};
}

/// Python's int() and float(): signs, and underscores between digits.
bool is_number(std::string text, bool whole) {
  const auto is_digit = [&](std::size_t n) { return text[n] >= '0' && text[n] <= '9'; };
  for (std::size_t n = 1; n + 1 < text.size(); ++n)
    if (text[n] == '_' && is_digit(n - 1) && is_digit(n + 1)) text.erase(n, 1);
  if (text.starts_with('+') && !text.starts_with("+-")) text.erase(0, 1);
  const char *begin = text.data(), *end = begin + text.size();
  double value = 0;
  long long integer = 0;
  const auto read = whole ? std::from_chars(begin, end, integer) : std::from_chars(begin, end, value);
  return !text.empty() && read.ptr == end;
}

}  // namespace

void refuse_values(const Given& given, std::string_view takes) {
  const auto refuse = [&](const std::string& message, const std::vector<std::string>& allowed = {},
                          const std::string& nearest = {}) {
    throw UsageError(given.where, given.name, message, allowed, nearest);
  };
  const bool several = takes.ends_with('*');
  if (several) takes.remove_suffix(1);
  const std::size_t count = given.values.size();
  if (takes.empty() && count > 0) refuse("takes no value, found " + given.values.front());
  if (!takes.empty() && !several && takes != "?" && count != 1)
    refuse("takes one value, found " + (count == 0 ? "none" : fmt::to_string(count)));
  for (const auto& value : given.values) {
    if (takes == "str" || takes == "?" || value.find('$') != std::string::npos) continue;
    if (takes == "int" || takes == "float") {
      if (!is_number(value, takes == "int"))
        refuse(fmt::format("expected {}, found the string \"{}\"", takes == "int" ? "an integer" : "a number", value));
      continue;
    }
    std::vector<std::string> allowed;
    for (std::size_t from = 0; from <= takes.size(); from = std::min(takes.find('|', from), takes.size()) + 1)
      allowed.emplace_back(takes.substr(from, takes.find('|', from) - from));
    if (std::ranges::find(allowed, value) == allowed.end())
      refuse("unknown value, found the string \"" + value + '"', allowed, nearest_name(value, allowed));
  }
}

std::vector<Clash> clashes(const std::vector<Given>& said, const scenario::Scenario& s) {
  std::vector<Clash> found;
  const auto given = [&](const char* name) -> const Given* {
    const auto at = std::ranges::find(said, name, &Given::name);
    return at == said.end() || at->values == std::vector<std::string>{"0"} ? nullptr : &*at;
  };
  for (const auto& [one, other, message] : exclusive)
    if (given(one) != nullptr && given(other) != nullptr)
      found.push_back({"flag.beside", one, message, fmt::format("keep {} or {}", one, other)});

  // Megatron finds out when training comes to such a batch. From 0.18 on nothing reads --rampup-batch-size.
  const bool ramps = scenario::core_version(s.software) < scenario::Version::v0_18;
  for (const auto* flag : {"--step-batch-size-schedule", "--rampup-batch-size"}) {
    const Given* batches = given(flag);
    if (batches == nullptr || (flag == std::string_view("--rampup-batch-size") && !ramps)) continue;
    const auto full = static_cast<double>(s.settings.global_batch_size);
    for (const double batch : ramps ? ramped(*batches, full) : stepped(*batches)) {
      const std::string message = refusal(s, batch);
      if (message.empty()) continue;
      found.push_back({"flag.beside", flag,
                       fmt::format("a batch of {:.0f} comes before the full one: {}", batch, message),
                       "choose batches that all run with these sizes"});
      break;
    }
  }
  // Formats of checkpoints are asked for whether any is written or not.
  const Given* format = given("--ckpt-format");
  const std::string kind = format == nullptr || format->values.empty() ? "torch_dist" : format->values.front();
  const auto& o = s.settings;
  if (o.use_megatron_fsdp && kind != "fsdp_dtensor")
    found.push_back({"flag.missing", "--use-megatron-fsdp",
                     "Megatron-FSDP requires the `fsdp_dtensor` checkpointing format.",
                     "add --ckpt-format fsdp_dtensor"});
  if (!o.use_megatron_fsdp && kind == "fsdp_dtensor")
    found.push_back({"flag.beside", "--ckpt-format", "--ckpt-format fsdp_dtensor is only tested with Megatron FSDP.",
                     "remove --ckpt-format, or add --use-megatron-fsdp"});
  if (o.overlap_param_gather_with_optimizer_step && kind != "torch")
    found.push_back({"flag.missing", "--overlap-param-gather-with-optimizer-step",
                     "--overlap-param-gather-with-optimizer-step not supported with distributed checkpointing yet",
                     "add --ckpt-format torch"});
  if (given("--save") != nullptr && given("--save-interval") == nullptr &&
      given("--persistent-save-interval") == nullptr)
    found.push_back(
        {"flag.missing", "--save", "--save asks for --save-interval", "add --save-interval N, or remove --save"});
  return found;
}

void require_known_flags(const Import& import) {
  for (const auto& finding : import.findings)
    if (finding.severity == plan::Severity::violation)
      throw UsageError(import.scenario.origin, finding.settings.empty() ? finding.rule : finding.settings.front(),
                       finding.message + "; " + finding.fix);
}

std::string last_batch(const Given& schedule) { return fmt::format("{:.0f}", stepped(schedule).back()); }

}  // namespace pipewright::emit
