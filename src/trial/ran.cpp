// What the program says it runs, beside the candidate: a launcher that does not hand {flags} on measures something
// else.
#include <array>
#include <map>
#include <string>

#include "log_lines.hpp"
#include "pipewright/regex.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/trial.hpp"

namespace pipewright::trial {
namespace {

struct Told {
  std::string_view field, printed;
  std::string_view bridges_default;  ///< what Bridge's summary leaves out
};
/// What no check of Megatron's changes before it prints it.
constexpr std::array kTold = {Told{"settings.tensor_model_parallel_size", "tensor_model_parallel_size", "1"},
                              Told{"settings.pipeline_model_parallel_size", "pipeline_model_parallel_size", "1"},
                              Told{"settings.context_parallel_size", "context_parallel_size", "1"},
                              Told{"settings.expert_model_parallel_size", "expert_model_parallel_size", "1"},
                              Told{"settings.recompute_granularity", "recompute_granularity", "None"},
                              Told{"settings.micro_batch_size", "micro_batch_size", ""},
                              Told{"settings.global_batch_size", "global_batch_size", ""},
                              Told{"model.hidden_size", "hidden_size", ""},
                              Told{"cluster.num_gpus", "world_size", ""}};

/// Megatron-LM: "  hidden_size ......... 4096" (arguments.py, _print_args). Bridge: "  hidden_size: 4096  (Mcore
/// default: 0)" under "[model] Non-default values", all of "[train]" (config.py, log_non_default_values).
std::map<std::string, std::string> printed(std::string_view log) {
  std::map<std::string, std::string> result;
  std::string section;
  each_line(log, [&](std::string_view line) {
    static const Regex megatron(R"((?:^|\s)(\w{1,64}) \.{2,48} (\S{1,64})\s*$)"),
        bridge(R"((?:^|\s)(\w{1,64}): '?([\w.]{1,64})'?(?:  \(Mcore default: .*)?$)"),
        header(R"(\[(\w{1,32})\](?: Non-default values|:$))");
    line = line.substr(0, 256);
    if (holds(line, " ...")) {
      if (const auto found = megatron.first_in(line); !found.empty()) result.emplace(found[1], found[2]);
    } else if (const auto begins = holds(line, "[") ? header.first_in(line) : std::vector<std::string>();
               !begins.empty()) {
      section = begins[1];
      if (section == "model" && holds(line, "Non-default"))
        for (const auto& each : kTold)
          if (!each.bridges_default.empty()) result.try_emplace(std::string(each.printed), each.bridges_default);
    } else if (section == "model" || section == "train") {
      if (const auto found = bridge.first_in(line); !found.empty()) result[found[1]] = found[2];
    }
  });
  return result;
}

}  // namespace

std::vector<std::string> not_of(const scenario::Scenario& scenario, std::string_view log) {
  std::vector<std::string> result;
  const auto said = printed(log);
  for (const auto& each : kTold) {
    const auto found = said.find(std::string(each.printed));
    if (found == said.end()) continue;
    if (found->second == "None" && each.bridges_default != "None") continue;  // said by another flag
    const std::string wanted = scenario::get(scenario, std::string(each.field));
    const std::string is = found->second == "None" ? "none" : found->second;
    if (is != wanted)
      result.push_back(std::string(each.printed) + " " + found->second + ", not " +
                       (wanted == "none" ? "None" : wanted));
  }
  return result;
}

}  // namespace pipewright::trial
