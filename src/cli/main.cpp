// The program `pipewright`: a table of commands, and what their exceptions mean for the shell.
// Exit status: 0 done, 1 the answer is no, 2 the input is wrong, 3 an internal error.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "commands.hpp"
#include "pipewright/base.hpp"

namespace pipewright::cli {
namespace {

using AddCommand = void (*)(CLI::App&, Outcome&);

/// In the order in which --help shows them.
constexpr std::array commands = {AddCommand{add_plan},     AddCommand{add_simulate}, AddCommand{add_sweep},
                                 AddCommand{add_explain},  AddCommand{add_schedule}, AddCommand{add_check},
                                 AddCommand{add_validate}, AddCommand{add_convert},  AddCommand{add_replay_allocator},
                                 AddCommand{add_list},     AddCommand{add_profile},  AddCommand{add_capture},
                                 AddCommand{add_import}};

/// What CLI11 refused, said with the nearest name; rethrows CLI11's own text where no name is misspelled.
void explain(const CLI::App& program, const std::vector<std::string>& arguments, const CLI::ParseError& error) {
  const CLI::App* app = &program;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") break;
    if (argument.rfind("--", 0) == 0) {
      const std::string option = argument.substr(0, argument.find('='));
      std::vector<std::string> known;
      const CLI::Option* found = nullptr;
      for (const auto* o : app->get_options()) {
        for (const auto& name : o->get_lnames()) {
          known.push_back("--" + name);
          if (known.back() == option) found = o;
        }
      }
      if (found != nullptr) {
        if (found->get_items_expected_min() > 0 && option == argument) ++i;  // its value may begin with "--"
        continue;
      }
      throw UsageError({"command line", 0}, option, "unknown option", known, nearest_name(option, known));
    }
    const auto below = app->get_subcommands([](const CLI::App*) { return true; });
    if (below.empty() || argument.rfind('-', 0) == 0) continue;
    std::vector<std::string> known;
    const CLI::App* next = nullptr;
    for (const auto* sub : below) {
      known.push_back(sub->get_name());
      if (sub->get_name() == argument) next = sub;
    }
    if (next == nullptr) {
      throw UsageError({"command line", 0}, argument, "unknown command", known, nearest_name(argument, known));
    }
    app = next;
  }
  throw UsageError({"command line", 0}, {}, error.what());
}

int run(int argc, char** argv) {
  CLI::App app{"Simulates and plans pipeline-parallel training with Megatron-LM and Megatron Bridge.", "pipewright"};
  app.set_version_flag("--version", "pipewright " PIPEWRIGHT_VERSION);
  app.require_subcommand(1);
  Outcome outcome;
  for (const AddCommand add : commands) add(app, outcome);
  if (argc < 2) {
    std::fputs(app.help().c_str(), stderr);
    return 2;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    explain(app, {argv + 1, argv + argc}, error);
  }
  return outcome.status;
}

}  // namespace
}  // namespace pipewright::cli

int main(int argc, char** argv) {
  try {
    const int status = pipewright::cli::run(argc, argv);
    if (std::fflush(stdout) != 0) throw pipewright::UsageError("standard output cannot be written");
    return status;
  } catch (const pipewright::UsageError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "internal error: %s\n", error.what());
    return 3;
  }
}
