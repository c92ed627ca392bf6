// pipewright schedule: every rank's program, in the order in which its host issues it.
#include <memory>

#include "commands.hpp"
#include "input.hpp"
#include "pipewright/report.hpp"
#include "pipewright/schedule.hpp"

namespace pipewright::cli {
namespace {

struct ScheduleOptions {
  Input input;
  std::string json;
  bool detail = false, hooks = false, frees = false;
};

void print_schedule(const ScheduleOptions& options) {
  const Loaded loaded = options.input.legal();
  const auto program = schedule::build(schedule::config_of(loaded.scenario, options.detail));
  const report::Stamp stamp{&loaded.scenario, {}};
  if (!options.json.empty()) {
    write_result(options.json, report::schedule_json(program, options.hooks, options.frees, &stamp));
  }
  if (options.json != "-") {
    write_result("-", report::configuration_text(loaded.scenario) +
                          report::schedule_text(program, options.hooks, options.frees));
  }
}

}  // namespace

void add_schedule(Command& app, Outcome&) {
  auto& command = app.add_subcommand("schedule", "Print Megatron's program of every pipeline rank");
  const auto options = std::make_shared<ScheduleOptions>();
  options->input.add_to(command);
  command.add_flag("--detail", options->detail, "expert-parallel overlap down to the nodes of every layer");
  command.add_flag("--hooks", options->hooks, "also no_sync, gradient and parameter synchronisation");
  command.add_flag("--frees", options->frees, "also where outputs are deallocated");
  add_json_option(command, options->json);
  command.footer(
      "F3.1: forward of microbatch 3, chunk 1. B: backward. S[...]: transfers, waited for; A[...]: not waited for; W: "
      "the wait.\nsn, rp, sp, rn: send next, receive previous, send previous, receive next.\n\n"
      "Examples:\n"
      "  pipewright schedule S.yaml\n"
      "  pipewright schedule S.yaml --set virtual_pipeline_model_parallel_size=4 --hooks --frees --json -");
  command.callback([options] { print_schedule(*options); });
}

}  // namespace pipewright::cli
