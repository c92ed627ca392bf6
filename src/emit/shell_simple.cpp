// Simple commands of a script: what they set before they run, and with which words.
#include <algorithm>
#include <utility>

#include "shell_run.hpp"

namespace pipewright::emit {

namespace {

template <class Map>
std::optional<typename Map::mapped_type> found(const Map& map, const std::string& name) {
  const auto at = map.find(name);
  return at == map.end() ? std::optional<typename Map::mapped_type>() : at->second;
}

template <class Map>
std::optional<typename Map::mapped_type> taken(Map& map, const std::string& name) {
  const auto node = map.extract(name);
  return node.empty() ? std::optional<typename Map::mapped_type>() : std::move(node.mapped());
}

}  // namespace

Truth Shell::simple(bool active) {
  std::vector<Raw> raws;
  std::map<std::string, std::optional<ShellWord>> before;  // of NAME=word in front of a command
  std::map<std::string, ShellWord> declared;
  const int line = in_->line();
  in_->take_here_string();
  const auto declares = [&] {
    static const std::set<std::string> names = {"export", "declare", "local", "readonly", "typeset"};
    return !raws.empty() && names.contains(raws.front().text);
  };
  while (const auto raw = in_->next_raw(!raws.empty() && raws.front().text == "[[" && raws.back().text != "]]")) {
    if (raws.empty()) {
      if (auto value = assign(*raw, active, {})) {
        if (!value->first.empty()) {
          before.emplace(value->first, state_.known(value->first));
          assign_scalar(state_, value->first, std::move(value->second));
        }
        continue;
      }
    } else if (declares()) {
      const std::string hidden = active ? declare(raws, raw->text) : "";
      auto value = assign(*raw, active, declared);  // still sees what it hides
      if (!hidden.empty() && !(value && value->first.empty()) && !state_.tables.contains(hidden))
        forget(state_, hidden);
      if (value && !value->first.empty()) declared[value->first] = std::move(value->second);
    }
    raws.push_back(*raw);
  }
  in_->skip_redirections();
  if (!active) return Truth::unknown;
  if (raws.empty()) return Truth::yes;
  if (declares()) {
    for (auto& [name, value] : declared) assign_scalar(state_, name, std::move(value));
    for (std::size_t i = 1; i < raws.size() && raws.front().text == "export"; ++i) {
      std::string name = raws[i].text.substr(0, assignment(raws[i].text));
      if (name.ends_with('+')) name.pop_back();
      state_.exported.insert(std::move(name));
    }
    return Truth::yes;
  }
  std::map<std::string, std::optional<ShellWord>> own;  // what the command alone sees, not its words
  for (const auto& [name, old] : before) own[name] = state_.known(name);
  restore(before);
  ShellCommand command;
  for (const Raw& raw : raws) expand(raw, state_, *in_.reader, command.words);
  if (command.words.empty()) return Truth::unknown;
  restore(own);
  for (const auto& [name, value] : own)
    if (value) command.variables[name] = value->text;
  const Truth truth = built_in(std::move(command), raws, line);
  restore(before);
  return truth;
}

void Shell::settle(const std::string& name, ShellWord& value) const {
  const auto& text = value.text;
  if (!is_unset_variable(text)) return;
  if (text != "${command}" && text != "${arithmetic}" && std::all_of(text.begin() + 2, text.end() - 1, name_char))
    return;
  const auto said = said_.find(name);
  value.text = said == said_.end() ? "${" + name + "}" : said->second;
}

void Shell::restore(const std::map<std::string, std::optional<ShellWord>>& values) {
  for (const auto& [name, value] : values) {
    if (value)
      assign_scalar(state_, name, *value);
    else
      state_.scalars.erase(name);
  }
}

std::string Shell::declare(const std::vector<Raw>& words, const std::string& text) {
  std::string name = text.substr(0, assignment(text));
  if (name.ends_with('+')) name.pop_back();
  const auto has = [&](char letter) {
    return std::any_of(words.begin() + 1, words.end(), [&](const Raw& word) {
      return word.text.starts_with('-') && word.text.find(letter) != std::string::npos;
    });
  };
  if (name.empty() || name.front() == '-') return {};
  const auto& how = words.front().text;
  const bool hides =
      !frames_.empty() && how != "export" && how != "readonly" && !has('g') &&
      frames_.back()
          .emplace(name, Variable{found(state_.scalars, name), found(state_.arrays, name), found(state_.tables, name)})
          .second;
  if (has('A')) state_.tables[name];
  return hides ? name : "";
}

std::optional<Shell::Named> Shell::assign(const Raw& raw, bool active,
                                          const std::map<std::string, ShellWord>& declared) {
  const auto equals = assignment(raw.text);
  if (equals == std::string::npos) return {};
  const bool append = raw.text[equals - 1] == '+';
  const std::string name = raw.text.substr(0, equals - (append ? 1 : 0));
  if (!active && set_unseen_) set_unseen_->insert(name.substr(0, name.find('[')));
  if (raw.text[equals - 1] == ']') {  // NAME[KEY]=word
    const auto open = raw.text.find('[');
    if (active) enter(raw.text.substr(0, open), raw.text.substr(open), raw.line);
    return Named();
  }
  if (const auto elements = in_->array_after(raw, equals)) {
    if (!active) return Named();
    if (!append && state_.tables.contains(name)) state_.tables[name].clear();
    if (!elements->empty() && elements->front().text.starts_with('[') &&
        elements->front().text.find("]=") != std::string::npos) {
      if (!append) state_.arrays.erase(name), state_.scalars.erase(name);
      for (const Raw& element : *elements) enter(name, element.text, element.line);
      return Named();
    }
    std::vector<ShellWord> values;
    for (const Raw& element : *elements) expand(element, state_, *in_.reader, values);
    auto& array = state_.arrays[name];
    if (!append) array.clear();
    if (const auto scalar = taken(state_.scalars, name); scalar && append) array.insert(array.begin(), *scalar);
    array.insert(array.end(), values.begin(), values.end());
    return Named();
  }
  if (!active) return Named();
  ShellWord value = joined(Raw{raw.text.substr(equals + 1), raw.line}, state_, *in_.reader);
  if (append) {
    const auto sooner = declared.find(name);
    if (const auto old = sooner != declared.end() ? std::optional(sooner->second) : state_.known(name))
      value = {old->text + value.text, old->line};
  }
  settle(name, value);
  if (value.text.size() > ShellState::longest) throw in_->error(name + " grows beyond 1 MiB");
  return Named(name, std::move(value));
}

void Shell::enter(const std::string& name, const std::string& entry, int line) {
  const auto close = entry.find("]=");
  if (!entry.starts_with('[') || close == std::string::npos) return;
  const std::string key = joined(Raw{entry.substr(1, close - 1), line}, state_, *in_.reader).text;
  ShellWord value = joined(Raw{entry.substr(close + 2), line}, state_, *in_.reader);
  constexpr std::size_t most = 10'000;
  const auto number = state_.tables.contains(name) ? std::optional<std::int64_t>() : arithmetic(key, state_);
  if (number && *number >= 0) {
    auto& array = state_.arrays[name];
    if (const auto scalar = taken(state_.scalars, name)) array.insert(array.begin(), *scalar);
    if (static_cast<std::size_t>(*number) < array.size())
      array[static_cast<std::size_t>(*number)] = std::move(value);
    else
      array.push_back(std::move(value));  // a gap is no element
    if (array.size() > most) throw in_->error(name + " has more than 10,000 entries");
    return;
  }
  auto& table = state_.tables[name];
  if (table.size() > most) throw in_->error(name + " has more than 10,000 entries");
  table[key] = std::move(value);
}

void Shell::add(ShellCommand command) {
  for (const auto& variable : state_.exported)
    if (const auto at = state_.scalars.find(variable); at != state_.scalars.end())
      command.variables.emplace(variable, at->second.text);
  if (result_.commands.size() >= 10'000) throw in_->error("more than 10,000 commands");
  result_.commands.push_back(std::move(command));
}

}  // namespace pipewright::emit
