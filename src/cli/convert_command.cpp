// pipewright convert: any form of input to a scenario file.
#include <cstdio>
#include <memory>

#include "commands.hpp"
#include "input.hpp"
#include "pipewright/scenario/io.hpp"

namespace pipewright::cli {
namespace {

struct ConvertOptions {
  Input input;
  KeptFile out;
};

void convert(const ConvertOptions& options) {
  const Loaded loaded = options.input.runnable();
  options.out.require_free();
  for (const auto& note : loaded.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  write_result(options.out.path, scenario::write(loaded.scenario));
}

}  // namespace

void add_convert(Command& app, Outcome&) {
  auto& command = app.add_subcommand("convert", "Write a scenario file from any form of input");
  const auto options = std::make_shared<ConvertOptions>();
  options->input.add_to(command);
  options->out.add_to(command, "scenario file");
  command.footer(
      "Example:\n"
      "  pipewright convert --hf config.json --gpus 64 --profile h100-sxm --set seq_length=4096 \\\n"
      "    --set global_batch_size=512 --out S.yaml");
  command.callback([options] { convert(*options); });
}

}  // namespace pipewright::cli
