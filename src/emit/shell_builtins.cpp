// Commands of a script that the shell does itself: read, set, eval, functions, what is printed in $( ).
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "shell_run.hpp"

namespace pipewright::emit {

std::optional<std::string> Shell::printed(std::string_view text, int line) {
  constexpr std::size_t most = 10'000;
  if (++outputs_ > most) throw in_->error("more than 10,000 commands within words");
  ShellReader reader(text, in_->file());
  ShellCommand command;
  while (const auto raw = reader.next_raw()) expand(Raw{raw->text, line}, state_, reader, command.words);
  if (command.words.empty()) return std::nullopt;
  if (command.words.front().text == "cd") {  // cd FOLDER > /dev/null && pwd
    reader.skip_redirections();
    const auto joins = reader.take_operator();
    if (joins != "&&" && joins != ";") return std::nullopt;
    const auto then = reader.take_word();
    while (reader.next_raw()) {
    }
    if (then != "pwd" || command.words.size() != 2) return std::nullopt;
    command.words.front().text = "realpath";
  }
  if (!reader.at_end()) return std::nullopt;
  const std::string name = command.words.front().text;
  if (functions_.contains(name)) {
    const auto before = result_.commands.size();
    in_subshell([&] { return call(command, line); });
    std::string all;
    bool known = true;
    for (std::size_t i = before; i < result_.commands.size(); ++i) {
      const auto one = echoed(result_.commands[i].words);
      known = known && one.has_value();
      all += (all.empty() ? "" : "\n") + one.value_or("");
    }
    result_.commands.resize(before);
    return known ? std::optional(all) : std::nullopt;
  }
  if (name == "expr") {
    std::string expression;
    for (std::size_t i = 1; i < command.words.size(); ++i) expression += command.words[i].text + " ";
    const auto value = arithmetic(expression, state_);
    return value ? std::optional(std::to_string(*value)) : std::nullopt;
  }
  if (const auto path = path_printed(command.words)) return path;
  return echoed(command.words);
}

std::optional<std::string> Shell::path_printed(const std::vector<ShellWord>& words) {
  namespace fs = std::filesystem;
  const auto& name = words.front().text;
  const bool whole = name == "realpath" || (name == "readlink" && words.size() > 2 && words[1].text == "-f");
  const std::size_t count = name == "readlink" ? 3 : 2;
  if ((!whole && name != "dirname" && name != "basename") || words.size() != count || is_open(words.back().text))
    return std::nullopt;
  const fs::path path(words.back().text);
  if (whole) {
    const auto all = fs::absolute(path).lexically_normal();
    return all.has_filename() ? all.string() : all.parent_path().string();
  }
  if (path.empty() || !path.has_filename()) return std::nullopt;
  if (name == "basename") return path.filename().string();
  return path.has_parent_path() ? path.parent_path().string() : ".";
}

Truth Shell::source(const ShellCommand& command, int line) {
  namespace fs = std::filesystem;
  const std::string named = command.words.size() > 1 ? command.words[1].text : "a file";
  const auto unread = [&] {
    note(line, named + " is not read: give its variables with --env");
    return Truth::yes;
  };
  std::error_code none;
  fs::path path(named);
  if (!fs::is_regular_file(path, none)) path = fs::path(text_.file()).parent_path() / path;
  if (is_open(named) || sources_ >= 10 || !fs::is_regular_file(path, none)) return unread();
  const ShellState before = state_;
  const auto commands = result_.commands.size();
  ShellReader* const from = in_.reader;
  auto arguments = state_.arguments;
  if (command.words.size() > 2) state_.arguments.emplace(command.words.begin() + 2, command.words.end());
  ++sources_;
  Truth truth = Truth::yes;
  try {
    texts_.push_back(read_file(path.string(), ShellState::longest));
    readers_.emplace_back(texts_.back(), path.string(), line);
    in_.reader = &readers_.back();
    truth = whole();
  } catch (const UsageError&) {  // no script as those that launch are: what set a machine up, say
    state_ = before;
    result_.commands.resize(commands);
    unread();
  }
  in_.reader = from;
  --sources_;
  state_.arguments = std::move(arguments);
  if (leaving_ == Leaving::function) leaving_ = Leaving::none;
  return truth;
}

std::optional<std::string> Shell::echoed(const std::vector<ShellWord>& words) {
  if (words.empty() || words.front().text != "echo") return std::nullopt;
  std::string text;
  std::size_t first = 1;
  while (first < words.size() && (words[first].text == "-n" || words[first].text == "-e")) ++first;
  for (std::size_t i = first; i < words.size(); ++i) text += (i == first ? "" : " ") + words[i].text;
  return text;
}

void Shell::read(const ShellCommand& command) {
  std::vector<std::string> names;
  bool list = false;
  for (std::size_t i = 1; i < command.words.size(); ++i) {
    const auto& word = command.words[i].text;
    if (word.starts_with('-') && word.size() > 1) {
      list = list || word.ends_with('a');
      if (std::string_view("dnNptu").find(word.back()) != std::string_view::npos) ++i;
    } else {
      names.push_back(word);
    }
  }
  if (names.empty()) return;
  if (const auto document = in_->coming_document()) {
    state_.scalars[names.back()] = joined(*document, state_, *in_.reader);
    return;
  }
  const auto raw = in_->take_here_string();
  const ShellWord text = raw ? joined(*raw, state_, *in_.reader) : ShellWord();
  for (const auto& name : names) forget(state_, name);
  if (!raw || is_open(text.text)) {  // what comes from outside
    for (const auto& name : names) state_.scalars[name] = {"${" + name + "}", text.line};
    return;
  }
  const auto separators = state_.known("IFS").value_or(ShellWord{" \t\n", 0}).text;
  const auto separates = [&](char c) { return separators.find(c) != std::string::npos; };
  const auto space = [&](char c) { return (blank(c) || c == '\n') && separates(c); };
  std::vector<ShellWord> parts;
  std::string_view rest = text.text;
  const auto trim = [&] {
    while (!rest.empty() && space(rest.front())) rest.remove_prefix(1);
  };
  trim();
  while (!rest.empty() && space(rest.back())) rest.remove_suffix(1);
  while (!rest.empty() && (list || parts.size() + 1 < names.size())) {
    const auto end = std::min(rest.find_first_of(separators), rest.size());
    parts.push_back({std::string(rest.substr(0, end)), text.line});
    rest.remove_prefix(end);
    trim();
    if (!rest.empty() && separates(rest.front())) rest.remove_prefix(1);
    trim();
  }
  if (list) {
    state_.arrays[names.front()] = std::move(parts);
    return;
  }
  parts.push_back({std::string(rest), text.line});
  for (std::size_t i = 0; i < names.size(); ++i)
    state_.scalars[names[i]] = i < parts.size() ? parts[i] : ShellWord{"", text.line};
}

void Shell::inner_script(const std::string& name) {
  if (name != "sbatch" && name != "bash" && name != "sh" && name != "cat") return;
  const auto document = in_->coming_document();
  if (!document) return;
  const auto body = joined(*document, state_, *in_.reader).text;
  if (name == "cat" && !body.starts_with("#!")) return;
  const auto script = std::string(static_cast<std::size_t>(std::max(document->line - 1, 0)), '\n') + body;  // its lines
  std::map<std::string, std::string> variables;
  for (const auto& variable : state_.exported)
    if (const auto at = state_.scalars.find(variable); at != state_.scalars.end())
      variables[variable] = at->second.text;
  if (++scripts_ > 100) throw in_->error("more than 100 scripts within the script");
  Shell inner(script, in_->file(), std::move(variables));
  inner.scripts_ = scripts_;
  auto run = inner.run();
  scripts_ = inner.scripts_;
  for (auto& word : run.directives) result_.directives.push_back(std::move(word));
  for (auto& one : run.commands) result_.commands.push_back(std::move(one));
  for (auto& one : run.notes) result_.notes.push_back(std::move(one));
}

Truth Shell::built_in(ShellCommand command, const std::vector<Raw>& raws, int line) {
  auto& words = command.words;
  const std::string name = words.front().text;
  if (name == "[" || name == "[[" || name == "test") return condition_of(raws, state_, *in_.reader, open_);
  if (name == "true" || name == ":") return Truth::yes;
  if (name == "false") return Truth::no;
  if (name == "exit" || name == "return") {
    if (name == "exit" || (frames_.empty() && sources_ == 0))
      end(line);
    else
      leaving_ = Leaving::function;
    return words.size() > 1 && words[1].text != "0" ? Truth::no : Truth::yes;
  }
  if ((name == "break" || name == "continue") && loops_ > 0) {
    leaving_ = name == "break" ? Leaving::loop : Leaving::pass;
    levels_ = words.size() > 1 ? std::clamp(std::atoi(words[1].text.c_str()), 1, loops_) : 1;
    return Truth::yes;
  }
  if (name == "unset") {
    for (const auto& word : words) forget(state_, word.text);
    return Truth::yes;
  }
  if (name == "let") {
    std::optional<std::int64_t> value;
    for (std::size_t i = 1; i < words.size(); ++i) value = arithmetic(words[i].text, state_);
    return truth_of(value);
  }
  if (name == "set") {
    const auto dashes = std::ranges::find(words, "--", &ShellWord::text);
    if (dashes != words.end()) state_.arguments.emplace(dashes + 1, words.end());
    return Truth::yes;
  }
  if (name == "shift") {
    if (!state_.arguments) return Truth::unknown;
    auto& arguments = *state_.arguments;
    const auto count = words.size() > 1 ? std::atoi(words[1].text.c_str()) : 1;
    if (count < 0 || static_cast<std::size_t>(count) > arguments.size()) return Truth::no;
    arguments.erase(arguments.begin(), arguments.begin() + count);
    return Truth::yes;
  }
  if (name == "printf" && words.size() > 2 && words[1].text == "-v") {
    forget(state_, words[2].text);  // what it prints is not followed
    return Truth::yes;
  }
  if (name == "source" || name == ".") return source(command, line);
  if (name == "read") {
    read(command);
    return Truth::unknown;
  }
  if (name == "mapfile" || name == "readarray") {  // lines of what runs: their number is not known either
    const bool named = words.size() > 1 && !words.back().text.starts_with('-') && !is_open(words.back().text);
    const std::string array = named ? words.back().text : "MAPFILE";
    forget(state_, array);
    state_.arrays[array] = {{"${" + array + "}", line}};
    return Truth::unknown;
  }
  if (name == "eval") return eval(command, line);
  if (functions_.contains(name)) return call(command, line);
  const std::string program = name.substr(name.rfind('/') + 1);
  inner_script(program);
  add(std::move(command));
  static const std::set<std::string> asks = {"grep", "egrep", "fgrep", "command", "which", "type",       "hash",
                                             "diff", "cmp",   "pgrep", "pidof",   "ping",  "getent",     "nc",
                                             "id",   "lsmod", "lspci", "nvcc",    "ip",    "nvidia-smi", "find"};
  return asks.contains(program) ? Truth::unknown : Truth::likely;
}

void Shell::deeper() {
  constexpr int deepest = 20;
  if (++depth_ > deepest) throw in_->error("functions call each other without end");
}

Truth Shell::call(const ShellCommand& command, int) {
  deeper();
  const auto [reader, body] = functions_.at(command.words.front().text);
  ShellReader* const from = in_.reader;
  const auto back = in_->place();
  auto arguments =
      std::exchange(state_.arguments, std::vector<ShellWord>(command.words.begin() + 1, command.words.end()));
  const int loops = std::exchange(loops_, 0);
  frames_.emplace_back();
  in_.reader = reader;
  const auto there = in_->place();
  in_->go_to(body);
  const Truth truth = this->command(true);
  in_->go_to(there);
  in_.reader = from;
  in_->go_to(back);
  if (leaving_ == Leaving::function) leaving_ = Leaving::none;
  for (auto& [name, variable] : frames_.back()) {
    forget(state_, name);
    if (variable.scalar) state_.scalars[name] = std::move(*variable.scalar);
    if (variable.array) state_.arrays[name] = std::move(*variable.array);
    if (variable.table) state_.tables[name] = std::move(*variable.table);
  }
  frames_.pop_back();
  loops_ = loops;
  state_.arguments = std::move(arguments);
  --depth_;
  return truth;
}

Truth Shell::eval(const ShellCommand& command, int line) {
  deeper();
  std::string text;
  for (std::size_t i = 1; i < command.words.size(); ++i) text += (i > 1 ? " " : "") + command.words[i].text;
  texts_.push_back(std::move(text));
  readers_.emplace_back(texts_.back(), text_.file());
  if (readers_.size() > 1000) throw in_->error("more than 1,000 evals");
  ShellReader* const from = std::exchange(in_.reader, &readers_.back());
  in_->go_to({0, line});
  const Truth truth = whole();
  in_.reader = from;
  --depth_;
  return truth;
}

}  // namespace pipewright::emit
