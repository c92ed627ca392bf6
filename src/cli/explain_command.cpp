// pipewright explain: who owns a rank's bytes at its peak, what one op waited for.
#include <memory>

#include "commands.hpp"
#include "input.hpp"
#include "pipewright/report.hpp"

namespace pipewright::cli {
namespace {

struct ExplainOptions {
  Input input;
  int rank = 0;
  bool peak = false;
  std::string op, json;
};

void explain(const ExplainOptions& options) {
  if (options.peak == !options.op.empty()) {
    throw UsageError({"command line", 0}, {}, "say what to explain", {"--peak", "--op \"F 3.1\""});
  }
  const Loaded loaded = options.input.legal();
  predict::Run run;
  const auto profiles = options.input.profiles(loaded.scenario);
  const auto asked = [&](int rank) { return options.peak && rank == options.rank; };
  const auto prediction = predict::predict(loaded.scenario, profiles, &run, asked);
  const report::Stamp stamp{&loaded.scenario, {}};
  if (!options.json.empty()) {
    write_result(options.json, options.peak ? report::explain_peak_json(prediction, options.rank, &stamp)
                                            : report::explain_op_json(run, options.rank, options.op, &stamp));
  }
  if (options.json == "-") return;
  write_result("-", report::configuration_text(loaded.scenario) +
                        (options.peak ? report::explain_peak_text(prediction, options.rank)
                                      : report::explain_op_text(run, options.rank, options.op)));
}

}  // namespace

void add_explain(Command& app, Outcome&) {
  auto& command = app.add_subcommand("explain", "The reason behind a number: owners of a peak, waits of an op");
  const auto options = std::make_shared<ExplainOptions>();
  options->input.add_to(command);
  command.add_option("--rank", options->rank, "pipeline rank").required();
  command.add_flag("--peak", options->peak, "who owns the bytes when the rank's memory peaks");
  command.add_option("--op", options->op, "what an op did and waited for: \"F 3.1\", \"B 0.0\"");
  add_json_option(command, options->json);
  command.footer(
      "Examples:\n"
      "  pipewright explain S.yaml --rank 0 --peak\n"
      "  pipewright explain S.yaml --rank 2 --op \"F 3.1\"");
  command.callback([options] { explain(*options); });
}

}  // namespace pipewright::cli
