// `man`: manual pages in roff (man(7)), made of what --help knows.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <sstream>

#include "commands.hpp"
#include "describe.hpp"
#include "pipewright/base.hpp"
#include "pipewright/report.hpp"

namespace pipewright::cli {
namespace {

/// Text as roff: its escape character and its minus, and no line that begins as a request does.
std::string roff(const std::string& text) {
  std::string out;
  bool begins = true;
  for (const char c : text) {
    if (begins && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
    begins = c == '\n';
  }
  return out;
}

std::string capitals(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
  return text;
}

std::string option_entries(const Command& command) {
  std::string out;
  for (const bool positional : {true, false})
    for (const Option& option : command.options()) {
      if (option.positional() != positional) continue;
      out += positional ? fmt::format(".TP\n\\fI{}\\fR\n", roff(option.name()))
             : option.flag()
                 ? fmt::format(".TP\n\\fB{}\\fR\n", roff(option.name()))
                 : fmt::format(".TP\n\\fB{}\\fR \\fI{}\\fR\n", roff(option.name()), roff(value_word(option)));
      out += roff(option.help()) + "\n";
    }
  return out;
}

std::string synopsis(const std::string& name, const Command& command) {
  std::string out = fmt::format(".B pipewright {}\n", roff(name));
  for (const Option& option : command.options())
    if (!option.positional() && option.is_required())
      out += fmt::format("\\fB{}\\fR \\fI{}\\fR\n", roff(option.name()), roff(value_word(option)));
  out += "[\\fIoption\\fR ...]\n";
  for (const Option& option : command.options())
    if (option.positional())
      out += option.is_required() ? fmt::format("\\fI{}\\fR\n", roff(option.name()))
                                  : fmt::format("[\\fI{}\\fR]\n", roff(option.name()));
  return out;
}

/// A footer is paragraphs, and after "Examples:" command lines.
std::string footer_sections(const std::string& footer) {
  if (footer.empty()) return {};
  const auto at = std::min(footer.find("Example:"), footer.find("Examples:"));
  std::string notes = footer.substr(0, at), out;
  while (!notes.empty() && notes.back() == '\n') notes.pop_back();
  if (!notes.empty()) out += ".SH NOTES\n.nf\n" + roff(notes) + "\n.fi\n";
  if (at == std::string::npos) return out;
  out += ".SH EXAMPLES\n.nf\n";
  std::istringstream lines(footer.substr(footer.find('\n', at) + 1));
  for (std::string line; std::getline(lines, line);) {
    const auto text = line.find_first_not_of(' ');
    out += text == std::string::npos ? "\n" : roff(line.substr(std::min<std::size_t>(text, 2))) + "\n";
  }
  return out + ".fi\n";
}

std::string head(const std::string& page, const std::string& what) {
  return fmt::format(".TH {} 1 \"\" \"pipewright {}\" \"User Commands\"\n.SH NAME\n{} \\- {}\n", roff(capitals(page)),
                     report::tool_version(), roff(page), roff(what));
}

constexpr const char* exit_status =
    ".SH EXIT STATUS\n"
    ".TP\n0\ndone\n"
    ".TP\n1\nthe answer is no: nothing fits, a rule is violated, a budget or tolerance is exceeded\n"
    ".TP\n2\nthe input is wrong\n"
    ".TP\n3\nan internal error\n";

std::string page_of_program(const Command& program) {
  std::string out = head("pipewright", program.help());
  out +=
      ".SH SYNOPSIS\n.B pipewright\n\\fIcommand\\fR [\\fIoption\\fR ...]\n.br\n.B pipewright \\-\\-version\n.SH "
      "COMMANDS\n";
  for (const Command& command : program.commands())
    out += fmt::format(".TP\n\\fB{}\\fR\n{}; see\n.BR pipewright\\-{} (1)\n", roff(command.name()),
                       roff(command.help()), roff(command.name()));
  out += exit_status;
  out +=
      ".SH ENVIRONMENT\n"
      ".TP\n.B PIPEWRIGHT_PROFILES\na folder with more profiles\n"
      ".TP\n.B NO_COLOR\nno colour on a terminal\n"
      ".TP\n.B COLUMNS\nwidth of prose on a terminal\n";
  out += ".SH FILES\n.TP\n.I share/pipewright/profiles\nmeasured and derived profiles of GPUs, beside the program\n";
  return out;
}

std::string page_of_command(const Command& command) {
  std::string out = head("pipewright-" + command.name(), command.help()) + ".SH SYNOPSIS\n";
  std::vector<Leaf> all;
  if (command.commands().empty()) all.push_back({command.name(), &command});
  for (const Command& below : command.commands()) all.push_back({command.name() + " " + below.name(), &below});
  for (const auto& [name, leaf] : all) out += (name == all.front().name ? "" : ".br\n") + synopsis(name, *leaf);
  if (all.size() == 1 && all.front().command == &command) {
    out += ".SH OPTIONS\n" + option_entries(command);
  } else {
    for (const auto& [name, leaf] : all)
      out += fmt::format(".SH {}\n{}\n", roff(capitals(leaf->name())), roff(leaf->help())) + option_entries(*leaf) +
             (leaf->footer().empty() ? "" : ".PP\n.nf\n" + roff(leaf->footer()) + "\n.fi\n");
  }
  return out + footer_sections(command.footer()) + exit_status + ".SH SEE ALSO\n.BR pipewright (1)\n";
}

}  // namespace

std::string manual_page(const Command& program, const std::string& name) {
  if (name.empty()) return page_of_program(program);
  std::vector<std::string> known;
  for (const Command& command : program.commands()) {
    if (command.name() == name) return page_of_command(command);
    known.push_back(command.name());
  }
  throw UsageError({"command line", 0}, name, "unknown command", known, nearest_name(name, known));
}

void add_man(Command& app, Outcome&) {
  auto& command = app.add_subcommand("man", "Print the manual page of the program or of a command, for man(1)");
  const auto name = std::make_shared<std::string>();
  command.add_option("NAME", *name, "a command");
  command.footer("Example:\n  pipewright man plan | man -l -");
  command.callback([name, &app] { write_result("-", manual_page(app, *name)); });
}

}  // namespace pipewright::cli
