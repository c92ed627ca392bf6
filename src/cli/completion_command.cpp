// `completion`: what bash, zsh and fish offer after pipewright, made of the options' data. Names of profiles are asked
// of the program at the moment, everything else stands in the script.
#include <fmt/format.h>

#include <map>
#include <memory>

#include "commands.hpp"
#include "describe.hpp"
#include "pipewright/base.hpp"
#include "pipewright/scenario/fields.hpp"

namespace pipewright::cli {
namespace {

/// In single quotes, for any of the three shells.
std::string in_quotes(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

/// "tensor_model_parallel_size=" and so on: what --set takes.
std::string setting_words() {
  std::string out;
  for (const auto& field : scenario::fields())
    if (field.section != "measured") out += (out.empty() ? "" : " ") + field.name + "=";
  return out;
}

std::string joined(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, " ")); }

bool takes_setting(const Option& option) {
  const std::string word = value_word(option);
  return option.name().starts_with("--set") || word == "NAME=V1,V2";
}

/// Before the first comma, semicolon or full stop: as much as fits in a column.
std::string brief(const std::string& help) { return help.substr(0, help.find_first_of(";.(")); }

// Prints the profiles' names; quick: none is read.
constexpr const char* profiles_command =
    R"(pipewright --version 2>/dev/null | sed -n 's/^profiles: \(.*\) (in .*/\1/p')";

}  // namespace

std::string bash_completion(const Command& program) {
  std::map<std::string, std::string> offers;  // option -> what is offered for its value
  std::string commands, arguments;
  for (const Command& command : program.commands()) {
    commands += (commands.empty() ? "" : " ") + command.name();
    std::vector<std::string> names;
    for (const Command& below : command.commands()) names.push_back(below.name());
    if (!names.empty()) arguments += fmt::format("        {}) words='{}' ;;\n", command.name(), joined(names));
  }
  const std::string profiles = "files=1 words=$(_pipewright_profiles)";
  for (const auto& [name, command] : leaves(program)) {
    std::vector<std::string> options = {"--help"};
    std::string argument;
    for (const Option& option : command->options()) {
      if (option.positional()) {
        argument = value_word(option).starts_with("PROFILE") ? profiles : names_file(option) ? "files=1" : "";
        if (!option.values_suggested().empty()) argument = fmt::format("words='{}'", joined(option.values_suggested()));
        continue;
      }
      options.push_back(option.name());
      if (option.flag()) continue;
      auto& offer = offers[option.name()];
      if (value_word(option) == "PROFILE")
        offer = profiles;
      else if (takes_setting(option))
        offer = "words=$_pipewright_settings; compopt -o nospace 2>/dev/null";
      else if (!option.values_suggested().empty())
        offer = fmt::format("words='{}'", joined(option.values_suggested()));
      else if (names_file(option))
        offer = "files=1";
    }
    arguments += fmt::format("        '{}') {} options='{}' ;;\n", name, argument, joined(options));
  }
  std::string values;
  for (const auto& [option, offer] : offers) values += fmt::format("    {}) {} ;;\n", option, offer);
  return "# bash completion of pipewright; `pipewright completion bash` writes it.\n_pipewright_settings=" +
         in_quotes(setting_words()) + "\n_pipewright_profiles() { " + profiles_command + " | tr -d ,; }\n" +
         R"(_pipewright() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  local command='' options='' words='' files='' i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case ${COMP_WORDS[i]} in -*) continue ;; esac
    case $command in
      '') case ' )" +
         commands + R"( ' in *" ${COMP_WORDS[i]} "*) command=${COMP_WORDS[i]} ;; esac ;;
      list | profile) command="$command ${COMP_WORDS[i]}" ;;
    esac
  done
  case $previous in
)" + values +
         R"(    *)
      case $command in
        '') words=')" +
         commands + R"(' options='--help --version' ;;
)" + arguments +
         R"(      esac
      if [[ $current == -* ]]; then words=$options files=''; fi
      ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [[ $files ]]; then COMPREPLY+=($(compgen -f -- "$current")); fi
}
complete -o filenames -F _pipewright pipewright
)";
}

namespace {

/// The action of _arguments for a value.
std::string zsh_action(const Option& option) {
  const std::string word = value_word(option);
  if (word.starts_with("PROFILE")) return "_pipewright_profiles";
  if (takes_setting(option)) return "_pipewright_settings";
  if (!option.values_suggested().empty()) return "(" + joined(option.values_suggested()) + ")";
  return names_file(option) ? "_files" : " ";
}

/// Brackets and colons end parts of a specification.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (const char c : text)
    out += (c == '[' || c == ']' || c == ':' || c == '\\') ? std::string("\\") + c : std::string(1, c);
  return out;
}

std::string zsh_arguments(const Command& command) {
  std::string out = "_arguments '--help[print help]'";
  for (const Option& option : command.options()) {
    std::string spec;
    const std::string name = zsh_text(value_word(option));
    if (option.positional())
      spec = fmt::format("*:{}:{}", name, zsh_action(option));
    else if (option.flag())
      spec = fmt::format("{}[{}]", option.name(), zsh_text(brief(option.help())));
    else
      spec = fmt::format("{}{}[{}]:{}:{}", option.is_repeatable() ? "*" : "", option.name(),
                         zsh_text(brief(option.help())), name, zsh_action(option));
    out += " " + in_quotes(spec);
  }
  return out;
}

}  // namespace

std::string zsh_completion(const Command& program) {
  std::string commands, cases;
  for (const Command& command : program.commands()) {
    commands += "    " + in_quotes(zsh_text(command.name()) + ":" + brief(command.help())) + "\n";
    if (command.commands().empty()) {
      cases += fmt::format("    {}) {} ;;\n", command.name(), zsh_arguments(command));
      continue;
    }
    std::string names;
    for (const Command& below : command.commands()) {
      names += " " + in_quotes(below.name() + ":" + brief(below.help()));
      cases += fmt::format("    '{} {}') {} ;;\n", command.name(), below.name(), zsh_arguments(below));
    }
    cases += fmt::format("    {}) local -a below=({} ); _describe command below ;;\n", command.name(), names);
  }
  return R"(#compdef pipewright
# `pipewright completion zsh` writes it.
_pipewright_settings() { compadd -S '' -- )" +
         setting_words() + R"( }
_pipewright_profiles() { compadd -- $()" +
         profiles_command + R"( | tr -d ,); _files }
_pipewright() {
  local -a commands=(
)" + commands +
         R"(  )
  if ((CURRENT == 2)); then
    _arguments '--help[print help]' '--version[version, commit and profiles]'
    _describe command commands
    return
  fi
  shift words; ((--CURRENT))
  local command=$words[1]
  case $command in
    list | profile) if ((CURRENT > 2)); then command="$command $words[2]"; shift words; ((--CURRENT)); fi ;;
  esac
  case $command in
)" + cases +
         R"(  esac
}
_pipewright "$@"
)";
}

std::string fish_completion(const Command& program) {
  std::string out =
      "# fish completion of pipewright; `pipewright completion fish` writes it.\n"
      "complete -c pipewright -n __fish_use_subcommand -l version -d 'version, commit and profiles'\n"
      "complete -c pipewright -l help -d 'print help'\n"
      "function __pipewright_profiles; " +
      std::string(profiles_command) +
      " | string split ', '; end\n"
      "set -g __pipewright_settings " +
      setting_words() + "\n";
  for (const Command& command : program.commands()) {
    out += fmt::format("complete -c pipewright -f -n __fish_use_subcommand -a {} -d {}\n", command.name(),
                       in_quotes(brief(command.help())));
    std::string names;
    for (const Command& below : command.commands()) names += " " + below.name();
    for (const Command& below : command.commands())
      out += fmt::format(
          "complete -c pipewright -f -n '__fish_seen_subcommand_from {}; and not __fish_seen_subcommand_from{}' -a {} "
          "-d {}\n",
          command.name(), names, below.name(), in_quotes(brief(below.help())));
  }
  for (const auto& [name, command] : leaves(program)) {
    std::string when;
    for (std::size_t from = 0; from <= name.size();) {
      const auto to = std::min(name.find(' ', from), name.size());
      when += (when.empty() ? "" : "; and ") + ("__fish_seen_subcommand_from " + name.substr(from, to - from));
      from = to + 1;
    }
    for (const Option& option : command->options()) {
      std::string value;
      if (value_word(option).starts_with("PROFILE"))
        value = " -a '(__pipewright_profiles)'";
      else if (takes_setting(option))
        value = " -f -a '$__pipewright_settings'";
      else if (!option.values_suggested().empty())
        value = fmt::format(" -f -a {}", in_quotes(joined(option.values_suggested())));
      else if (!names_file(option))
        value = " -f";
      if (option.positional()) {
        if (!value.empty()) out += fmt::format("complete -c pipewright -n {}{}\n", in_quotes(when), value);
        continue;
      }
      out += fmt::format("complete -c pipewright -n {} -l {}{}{} -d {}\n", in_quotes(when), option.name().substr(2),
                         option.flag() ? "" : " -r", value, in_quotes(brief(option.help())));
    }
  }
  return out;
}

void add_completion(Command& app, Outcome&) {
  auto& command = app.add_subcommand("completion", "Print a shell's completions");
  const auto shell = std::make_shared<std::string>();
  command.add_option("SHELL", *shell, "bash, zsh or fish").required().allowed({"bash", "zsh", "fish"});
  command.footer(
      "Examples:\n  source <(pipewright completion bash)\n"
      "  pipewright completion fish > ~/.config/fish/completions/pipewright.fish");
  command.callback([shell, &app] {
    write_result("-", *shell == "bash"  ? bash_completion(app)
                      : *shell == "zsh" ? zsh_completion(app)
                                        : fish_completion(app));
  });
}

}  // namespace pipewright::cli
