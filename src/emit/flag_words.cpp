#include "flag_words.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "emitted.hpp"
#include "field_table.hpp"
#include "shell_words.hpp"

namespace pipewright::emit {

namespace {

/// argparse takes a word that begins with a dash for an option, unless it is a number; Megatron's have two.
void refuse_one_dash(const std::string& word, const Position& where) {
  double number = 0;
  const auto* end = word.data() + word.size();
  if (word.size() < 2 || word[0] != '-' || word.find(' ') != std::string::npos) return;
  if (std::from_chars(word.data(), end, number).ptr == end) return;
  throw UsageError(where, word.substr(0, 60), "a flag begins with two dashes", {},
                   nearest_name("-" + word.substr(0, word.find('=')), all_flag_names()));
}

/// Megatron's parser takes no abbreviations and no other spelling; two of its flags have one with an underscore.
std::string spelled(const std::string& name, const Position& where) {
  std::string dashes = name;
  std::ranges::replace(dashes, '_', '-');
  const bool known = find_flag(dashes) != nullptr || find_other_flag(dashes) != nullptr;
  if (known && dashes != name && !name.ends_with("-opt_param-scheduler"))
    throw UsageError(where, name, "Megatron's flags have dashes where their fields have underscores", {}, dashes);
  return known ? dashes : name;
}

/// mlp core_attn, mlp,core_attn, [mlp core_attn], "[mlp, core_attn]" or ['mlp', 'core_attn'].
std::vector<std::string> list_words(const std::vector<std::string>& values) {
  std::vector<std::string> words;
  for (const auto& value : values) {
    std::string word;
    for (const char c : value + " ") {
      if (c == ' ' || c == ',' || c == '[' || c == ']') {
        if (!word.empty()) words.push_back(unquoted(word));
        word.clear();
      } else {
        word += c;
      }
    }
  }
  return words;
}

/// Of a flag that stands twice argparse keeps the last; lists as NVIDIA's YAML files write them lose their brackets.
std::vector<Given> united(std::vector<Given> all) {
  std::vector<Given> kept;
  for (auto& given : all) {
    const Flag* flag = find_flag(given.name);
    if (flag != nullptr && (flag->kind == Kind::list || given.name == "--cuda-graph-scope"))
      given.values = list_words(given.values);
    std::erase_if(kept, [&](const Given& other) { return other.name == given.name; });
    kept.push_back(std::move(given));
  }
  return kept;
}

}  // namespace

bool takes_values(const std::string& name) {
  const Flag* flag = find_flag(name);
  if (flag != nullptr) return flag->kind != Kind::on && flag->kind != Kind::off && flag->kind != Kind::mark;
  const OtherFlag* other = find_other_flag(name);
  return other == nullptr || !other->takes.empty();
}

std::vector<Given> flags_in(const std::vector<ShellWord>& words, const std::string& file,
                            std::vector<std::string>& notes) {
  std::vector<Given> given;
  for (const auto& [word, line] : words) {
    const Position where = {file, line};
    if (!word.starts_with("--")) {
      refuse_one_dash(word, where);
      if (is_unset_variable(word) && given.empty())
        throw UsageError(where, word,
                         std::isdigit(static_cast<unsigned char>(word[2])) != 0
                             ? "is not set: what follows the script's name is given with --arguments \"...\""
                             : "is not set: the flags that it stands for are given with --env " +
                                   word.substr(2, word.size() - 3) + "=\"--...\"");
      if (given.empty()) throw UsageError(where, word.substr(0, 60), "expected a flag (--name)");
      if (word.find_first_not_of(" \t") == std::string::npos && !word.empty())
        throw UsageError(where, given.back().name,
                         "a word of blanks follows: a backslash and a blank do not continue a line");
      if (is_unset_variable(word)) {
        const Flag* flag = find_flag(given.back().name);
        const bool alone = !takes_values(given.back().name) || !given.back().values.empty();
        if (alone || (flag != nullptr && flag->kind == Kind::special))  // of these some take a value, and ask for it
          notes.push_back(word + " is not set: taken as empty");
        if (alone) continue;
      }
      given.back().values.push_back(word);
      continue;
    }
    const auto equals = word.find('=');
    given.push_back({spelled(word.substr(0, equals), where), {}, where});
    if (equals != std::string::npos) given.back().values.push_back(word.substr(equals + 1));
  }
  return united(std::move(given));
}

std::string to_say(const std::vector<std::string>& unset) {
  std::string settings;
  bool arguments = false;
  for (const auto& word : unset) {
    const auto name = word.substr(2, word.size() - 3);
    const bool argument = name.find_first_not_of("0123456789") == std::string::npos;
    const bool variable = std::ranges::all_of(name, name_char);
    if (!argument) settings += " --env " + (variable ? name : "NAME") + "=VALUE";
    arguments = arguments || argument;
  }
  return (arguments ? " --arguments \"...\" (what follows the script's name)" : "") + settings;
}

void refuse_foreign(const std::vector<Given>& foreign, const std::optional<UsageError>& odd) {
  const auto near_to = [](const std::string& name) { return nearest_name(name, all_flag_names()); };
  std::string text, without;
  for (std::size_t n = 0; n < foreign.size(); ++n) {
    const auto& name = foreign[n].name;
    without += " --ignore " + name;
    const auto near = near_to(name);
    if (n == 0 && !odd) {
      text = near.empty() ? "unknown to every version of Megatron-LM known here" : "unknown flag";
      continue;
    }
    text += (n > (odd ? 0 : 1) ? ", "
             : odd             ? "; unknown flags: "
                               : "; so are ") +
            name + (near.empty() ? "" : " (did you mean " + near + "?)");
  }
  if (odd) without += " --ignore " + odd->key();
  text += (foreign.size() + (odd ? 1 : 0) == 1 ? "; without it:" : "; without them:") + without;
  if (odd) throw UsageError(odd->where(), odd->key(), odd->message() + text, odd->allowed(), odd->nearest());
  throw UsageError(foreign.front().where, foreign.front().name, text, {}, near_to(foreign.front().name));
}

}  // namespace pipewright::emit
