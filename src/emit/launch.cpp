// Launchers and their options: torchrun (torch.distributed.run and .launch), srun and sbatch, mpirun.
#include "launch.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "emitted.hpp"
#include "field_table.hpp"
#include "flag_words.hpp"
#include "pipewright/emit.hpp"
#include "programs.hpp"
#include "recipe_command.hpp"

namespace pipewright::emit {

namespace {

using scenario::Int;
using ShellWords = std::vector<ShellWord>;

struct LauncherOption {
  std::string_view name;  ///< underscores count as dashes
  Count what;
};
constexpr std::string_view gpt_program = "pretrain_gpt.py";
// torch/distributed/run.py; srun and sbatch of Slurm 24; Open MPI's mpirun.
constexpr std::array launcher_options = {LauncherOption{"--nproc-per-node", Count::of_node},
                                         LauncherOption{"--nnodes", Count::nodes},
                                         LauncherOption{"--nodes", Count::nodes},
                                         LauncherOption{"-N", Count::nodes},
                                         LauncherOption{"--ntasks-per-node", Count::of_node},
                                         LauncherOption{"--gpus-per-node", Count::of_node},
                                         LauncherOption{"--gres", Count::of_node},
                                         LauncherOption{"--ntasks", Count::all},
                                         LauncherOption{"-n", Count::all},
                                         LauncherOption{"-np", Count::all},
                                         LauncherOption{"--np", Count::all}};

/// "8", "gpu:8", "gpu:h100:8", "4:4" (elastic, the same number twice).
std::optional<Int> count(std::string_view text) {
  std::optional<Int> found;
  if (const auto colon = text.rfind(':'); colon != std::string_view::npos) {
    const auto first = text.substr(0, colon);
    if (!first.empty() && std::isdigit(static_cast<unsigned char>(first.front())) != 0 &&
        first != text.substr(colon + 1))
      return {};
    text.remove_prefix(colon + 1);
  }
  Int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number > 0 && number <= 10'000'000) found = number;
  return found;
}

/// Reads GPU counts from a launcher's words; what stands later is nearer to the training program and wins.
void read_counts(const ShellWords& words, std::size_t begin, std::size_t end, Launch& launch) {
  for (std::size_t i = begin; i < end; ++i) {
    const auto equals = words[i].text.find('=');
    std::string name = words[i].text.substr(0, equals);
    if (!name.starts_with('-')) continue;
    std::replace(name.begin(), name.end(), '_', '-');
    const auto option = std::ranges::find(launcher_options, name, &LauncherOption::name);
    if (option == launcher_options.end()) continue;
    const bool here = equals != std::string::npos;
    if (!here && i + 1 >= end) continue;
    const std::string& value = here ? words[i].text.substr(equals + 1) : words[i + 1].text;
    const auto number = count(value);
    auto& known = option->what == Count::nodes     ? launch.nodes
                  : option->what == Count::of_node ? launch.gpus_of_node
                                                   : launch.gpus;
    if (number) {
      known = number;
      launch.unknown.erase(option->what);
    } else if (!known) {
      launch.unknown[option->what] = {name + " " + value, words[here ? i : i + 1].line};
    }
  }
}

bool is_program(const std::string& word) { return word.ends_with(".py"); }

bool trains_recipe(const ShellWords& words) {
  constexpr std::array moves_files = {"cp", "mv", "ln", "rm", "ls", "cat", "chmod", "rsync", "sed"};
  if (!words.empty() && std::ranges::find(moves_files, words.front().text) != moves_files.end()) return false;
  return std::ranges::any_of(words, [](const ShellWord& word) { return runs_recipe(word.text); });
}

bool trains(const ShellWords& words) {
  return trains_recipe(words) || std::ranges::any_of(words, [](const ShellWord& word) {
           std::string name = word.text.substr(0, word.text.find('='));
           std::replace(name.begin(), name.end(), '_', '-');
           return name == "--num-layers" || name == "--hidden-size" || name == "--micro-batch-size";
         });
}

bool starts_program(const ShellWords& words) {
  return std::ranges::any_of(words, [](const ShellWord& word) {
    return runs_recipe(word.text) || is_program(word.text) || word.text == "-m" || word.text.ends_with("torchrun");
  });
}

/// A command that begins with a flag is what a line that was not continued leaves: bash does not find it, and trains
/// without.
void require_whole(const ShellRun& run, const std::string& file, std::optional<int> line = {}) {
  for (const auto& command : run.commands)
    if (const auto& first = command.words.front(); first.text.starts_with("--") && first.text.size() > 2)
      throw UsageError(
          {file, line.value_or(first.line)}, first.text,
          "begins a command of its own, which the training never sees: the line before it does not end with "
          "a backslash, or a newline stands in the text that is run");
}

/// bash -c "cd x; torchrun ... pretrain_gpt.py ...": the training command within the word, which sees what is exported.
/// `variables` gets what it sets.
ShellWords unfolded(const ShellWords& words, const std::string& file, std::map<std::string, std::string>& variables,
                    int depth = 0) {
  ShellWords all;
  for (const auto& word : words) {
    const bool command = word.text.find(' ') != std::string::npos && word.text.find(".py") != std::string::npos &&
                         word.text.find("--") != std::string::npos;
    const ShellCommand* training = nullptr;
    ShellRun run;
    if (command && depth < 4) {
      try {
        run = run_shell(word.text, file, variables);
      } catch (const UsageError&) {  // no shell's words: a program's text, say
      }
      for (const auto& one : run.commands)
        if (starts_program(one.words) && (training == nullptr || trains(one.words))) training = &one;
    }
    if (training == nullptr) {
      all.push_back(word);
      continue;
    }
    require_whole(run, file, word.line);
    auto seen = training->variables;
    ShellWords inner = training->words;
    for (auto& one : inner) one.line = word.line;
    for (auto& one : unfolded(inner, file, seen, depth + 1)) all.push_back(std::move(one));
    variables = std::move(seen);
  }
  return all;
}

/// Of a script without a training command that is read here.
UsageError untrained(const ShellRun& run, const std::string& file) {
  if (run.end)
    return {{file, *run.end},
            {},
            "the script ends here, and no training command stands before: a call of torchrun, srun or python with "
            "--num-layers, --hidden-size or --micro-batch-size. Variables that decide it are given with --env"};
  return {{file, 0},
          {},
          "no training command found: a call of torchrun, srun or python with --num-layers, --hidden-size or "
          "--micro-batch-size. Variables that the script takes from outside are given with --env"};
}

/// What does not train a decoder as pretrain_gpt.py does is refused, what is not known is said.
void judge_program(const ShellWord& script, Launch& launch) {
  const std::string program = script.text.substr(script.text.rfind('/') + 1);
  if (const auto work = other_work(script.text); !work.empty())
    throw UsageError({launch.file, script.line}, program,
                     std::string(work) + ": only what pretrain_gpt.py trains is modelled");
  launch.trains_gpt = program == gpt_program;
  launch.trains_hybrids = trains_hybrids(program);
  if (!launch.trains_gpt && !launch.trains_hybrids)
    launch.notes.push_back(program + " is taken to train as pretrain_gpt.py does");
}

/// What runs the functional tests of this file's folder.
void judge_folder(Launch& launch) {
  const auto program = program_of_test(launch.file);
  if (const auto work = other_work(program); !work.empty())
    throw UsageError(
        {launch.file, 0}, std::string(program),
        "runs the tests of this folder and " + std::string(work) + ": only what pretrain_gpt.py trains is modelled");
  launch.trains_gpt = program == gpt_program;
  launch.trains_hybrids = trains_hybrids(program);
}

std::string trimmed_value(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.remove_prefix(1);
  // A comment begins after a blank; quotes protect.
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (quote != 0)
      quote = text[i] == quote ? '\0' : quote;
    else if ((text[i] == '"' || text[i] == '\'') && i == 0)
      quote = text[i];
    else if (text[i] == '#' && (i == 0 || text[i - 1] == ' '))
      text = text.substr(0, i);
  }
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.remove_suffix(1);
  return unquoted(std::string(text));
}

/// ${NAME} and $NAME of those that are known.
std::string substituted(std::string text, const std::map<std::string, std::string>& variables) {
  for (auto at = text.find('$'); at != std::string::npos; at = text.find('$', at)) {
    const bool braces = text.substr(at + 1, 1) == "{";
    const auto begin = at + 1 + (braces ? 1 : 0);
    auto end = begin;
    while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '_')) ++end;
    const auto known = variables.find(text.substr(begin, end - begin));
    if (known == variables.end() || (braces && text.substr(end, 1) != "}")) {
      ++at;
      continue;
    }
    text.replace(at, end + (braces ? 1 : 0) - at, known->second);
    at += known->second.size();
  }
  return text;
}

}  // namespace

Launch launch_of_words(std::vector<ShellWord> given, const std::string& file) {
  Launch launch;
  launch.file = file;
  const ShellWords words = unfolded(given, file, launch.variables);
  // The program: the first NAME.py, or what -m names where it trains; a .py after training flags is their value.
  auto script =
      std::ranges::find_if(words, [](const ShellWord& w) { return runs_recipe(w.text) || is_program(w.text); });
  launch.trains_recipe = script != words.end() && runs_recipe(script->text);
  if (script != words.end() && trains({words.begin(), script})) script = words.end();
  for (auto at = words.begin(); script == words.end() && words.end() - at > 1; ++at)
    if (at->text == "-m" && !(at + 1)->text.starts_with("torch.distributed")) script = at + 1;
  const auto begin = script == words.end()
                         ? std::ranges::find_if(words, [](const ShellWord& w) { return w.text.starts_with("--"); })
                         : script + 1;
  for (auto at = words.begin(); at != begin; ++at) {
    const auto equals = at->text.find('=');
    if (!at->text.starts_with('-') && equals != std::string::npos && equals > 0 &&
        std::isupper(static_cast<unsigned char>(at->text.front())) != 0)
      launch.variables[at->text.substr(0, equals)] = at->text.substr(equals + 1);
  }
  if (script != words.end() && !launch.trains_recipe) judge_program(*script, launch);
  read_counts(words, 0, static_cast<std::size_t>(begin - words.begin()), launch);
  launch.words.assign(begin, words.end());
  return launch;
}

Launch launch_of_script(std::string_view text, const std::string& file,
                        const std::map<std::string, std::string>& variables,
                        const std::optional<std::vector<std::string>>& arguments) {
  ShellRun run = run_shell(text, file, variables, arguments);
  const ShellCommand* training = nullptr;
  const auto shows = [](const ShellCommand& command) {  // echo "torchrun ...": counts where nothing runs it
    return command.words.front().text == "echo" || command.words.front().text == "printf";
  };
  for (auto& command : run.commands) {
    const bool shown = shows(command);
    command.words = unfolded(command.words, file, command.variables);
    const bool better = training == nullptr || !shown || shows(*training);
    if (starts_program(command.words) && trains(command.words) && better) training = &command;
  }
  if (training == nullptr) throw untrained(run, file);
  require_whole(run, file);
  Launch launch;
  read_counts(run.directives, 0, run.directives.size(), launch);
  Launch command = launch_of_words(training->words, file);
  command.nodes = command.nodes ? command.nodes : launch.nodes;
  command.gpus_of_node = command.gpus_of_node ? command.gpus_of_node : launch.gpus_of_node;
  command.gpus = command.gpus ? command.gpus : launch.gpus;
  if (command.nodes) command.unknown.erase(Count::nodes);
  if (command.gpus_of_node) command.unknown.erase(Count::of_node);
  command.variables.insert(training->variables.begin(), training->variables.end());
  for (const auto& [name, value] : variables) command.variables.erase(name);  // those of --env are set anyway
  command.notes.insert(command.notes.begin(), run.notes.begin(), run.notes.end());
  return command;
}

bool is_model_config(std::string_view text) {
  return text.starts_with("MODEL_ARGS:") || text.find("\nMODEL_ARGS:") != std::string_view::npos;
}

Launch launch_of_model_config(std::string_view text, const std::string& file,
                              const std::map<std::string, std::string>& variables) {
  Launch launch;
  launch.file = file;
  judge_folder(launch);
  std::map<std::string, std::vector<std::pair<std::string, ShellWord>>> sections;
  std::map<std::string, std::string> anchors;
  std::string section, environment_of;
  int number = 0;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    const std::string_view row = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    const auto first = row.find_first_not_of(" \t\r");
    if (first == std::string_view::npos || row[first] == '#') continue;
    const auto colon = row.find(':', first);
    const auto key = colon == std::string_view::npos ? std::string_view() : row.substr(first, colon - first);
    if (first == 0) {
      section = std::string(key);
      const std::string rest = colon == std::string_view::npos ? "" : trimmed_value(row.substr(colon + 1));
      if (section == "MODE" && rest != "pretraining")
        throw UsageError({file, number}, section, rest + " is not modelled: only training by pretrain_gpt.py is");
      if (rest.starts_with('{') && rest != "{}" && (section == "ENV_VARS" || section.ends_with("MODEL_ARGS")))
        throw UsageError({file, number}, section, "expected NAME: VALUE, each in a line of its own below it");
      if (rest.starts_with('&')) anchors[rest.substr(1)] = section;
      continue;
    }
    if (section == "MODEL_ENV_VARS" && colon != std::string_view::npos) {  // of one section of arguments each
      const std::string value = trimmed_value(row.substr(colon + 1));
      if (value.empty()) environment_of = std::string(key);
      if (environment_of == "MODEL_ARGS" && key == "GPUS_PER_NODE") launch.gpus_of_node = count(value);
      continue;
    }
    if (section != "ENV_VARS" && section.find("MODEL_ARGS") == std::string::npos) continue;
    if (colon == std::string_view::npos) {  // a value that begins or goes on in a line of its own
      if (sections[section].empty()) throw UsageError({file, number}, section, "expected NAME: VALUE");
      std::string& begun = sections[section].back().second.text;
      begun += (begun.empty() ? "" : " ") + substituted(trimmed_value(row), variables);
      continue;
    }
    // The script hands values through a shell twice (xargs, eval): quotes within YAML's own go, releases up to 0.16
    // escape.
    std::string value = unquoted(substituted(trimmed_value(row.substr(colon + 1)), variables));
    std::erase(value, '\\');
    if (key == "<<") {  // another section's entries
      const auto anchor = value.starts_with('*') ? anchors.find(value.substr(1)) : anchors.end();
      if (anchor == anchors.end()) throw UsageError({file, number}, section, "no such anchor: " + value);
      const auto merged = sections[anchor->second];
      auto& into = sections[section];
      into.insert(into.end(), merged.begin(), merged.end());
      continue;
    }
    sections[section].emplace_back(key, ShellWord{value, number});
  }
  for (const auto& [name, value] : sections["ENV_VARS"]) launch.variables[name] = value.text;
  std::string left_out;
  for (const auto& [name, value] : sections["MODEL_ARGS"]) {
    if (value.text == "false" && !takes_values(name)) {
      left_out += (left_out.empty() ? "" : ", ") + name;
      continue;
    }
    launch.words.push_back({name, value.line});
    if (value.text == "true" || value.text.empty()) continue;
    if (value.text.starts_with('[') && value.text.ends_with(']')) {  // the script takes the brackets off
      for (const auto& word : split_shell(std::string_view(value.text).substr(1, value.text.size() - 2)))
        launch.words.push_back({word, value.line});
    } else {
      launch.words.push_back({value.text, value.line});
    }
  }
  if (launch.words.empty()) throw UsageError({file, 0}, "MODEL_ARGS", "no flags in it");
  if (!left_out.empty())
    launch.notes.push_back("left out, being false: " + left_out +
                           " (Megatron-MoE-ModelZoo's launcher leaves them out; what it adds of its own, dispatcher, " +
                           "FP8 and interleaving, is given with --set)");
  launch.nodes = 1;
  if (!launch.gpus_of_node) {
    constexpr Int default_gpus = 8;  // _run_training.sh: GPUS_PER_NODE=${GPUS_PER_NODE:-8}, one node
    launch.gpus_of_node = default_gpus;
    launch.notes.emplace_back("assumed 8 GPUs of one node, as Megatron's functional tests run");
  }
  return launch;
}

bool is_launch_file(const std::string& path, std::string_view text) {
  for (const auto* end : {".sh", ".bash", ".sbatch", ".slurm"})
    if (path.ends_with(end)) return true;
  return text.starts_with("#!") || is_model_config(text);
}

}  // namespace pipewright::emit
