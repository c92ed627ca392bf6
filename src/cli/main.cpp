// The program `pipewright`: a table of commands, and what their exceptions mean for the shell.
// Exit status: 0 done, 1 the answer is no, 2 the input is wrong, 3 an internal error.
#include <array>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>

#include "commands.hpp"
#include "pipewright/base.hpp"
#include "pipewright/report.hpp"
#include "terminal.hpp"

namespace pipewright::cli {
namespace {

using AddCommand = void (*)(Command&, Outcome&);

/// In the order in which --help shows them.
constexpr std::array commands = {AddCommand{add_plan},     AddCommand{add_simulate}, AddCommand{add_sweep},
                                 AddCommand{add_explain},  AddCommand{add_schedule}, AddCommand{add_check},
                                 AddCommand{add_validate}, AddCommand{add_convert},  AddCommand{add_replay_allocator},
                                 AddCommand{add_list},     AddCommand{add_profile},  AddCommand{add_capture},
                                 AddCommand{add_import},   AddCommand{add_trial},    AddCommand{add_diff}};

int run(int argc, char** argv) {
  Command program("pipewright", "Simulates and plans pipeline-parallel training with Megatron-LM and Megatron Bridge.");
  Outcome outcome;
  for (const AddCommand add : commands) add(program, outcome);
  for (Command& command : program.commands()) add_color_option(command);
  if (const int columns = terminal_width(); columns > 0) report::set_line_width(columns);
  const Parsed parsed = parse(program, "pipewright " PIPEWRIGHT_VERSION, argc, argv);
  return parsed.ran ? outcome.status : parsed.status;
}

}  // namespace
}  // namespace pipewright::cli

int main(int argc, char** argv) {
  try {
    const int status = pipewright::cli::run(argc, argv);
    if (std::fflush(stdout) != 0) throw pipewright::UsageError("standard output cannot be written");
    return status;
  } catch (const pipewright::UsageError& error) {
    std::fprintf(stderr, "%s\n", pipewright::cli::dressed_message(std::string("error: ") + error.what(), true).c_str());
    return 2;
  } catch (const pipewright::cli::Refused& refusal) {
    std::fprintf(stderr, "%s\n", refusal.what());
    return 1;
  } catch (const std::filesystem::filesystem_error& error) {  // a name too long, a folder that may not be read
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    std::fputs("error: the input asks for more memory than this machine gives\n", stderr);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "internal error: %s\n", error.what());
    return 3;
  }
}
