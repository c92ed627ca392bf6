// What a planned configuration changes in the launch script or model_config.yaml that stated the given one: the
// script's own lines with other values. Flags come from emit::megatron of both, so that no default is mistaken for a
// change.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "emitted.hpp"
#include "field_table.hpp"
#include "launch.hpp"
#include "pipewright/scenario/fields.hpp"

namespace pipewright::emit {

namespace {

using FlagWords = std::map<std::string, std::vector<std::string>>;

/// Flag -> its values.
FlagWords flag_words(const Scenario& s) {
  FlagWords all;
  for (const auto& group : megatron(s))
    for (const auto& line : group.lines)
      if (!line.words.empty()) all[line.words.front()] = {line.words.begin() + 1, line.words.end()};
  return all;
}

class ScriptDiff {
 public:
  explicit ScriptDiff(std::string_view text) : yaml_(is_model_config(text)) {
    for (std::size_t at = 0; at < text.size();) {
      const auto end = std::min(text.find('\n', at), text.size());
      old_.emplace_back(text.substr(at, end - at));
      at = end + 1;
    }
    new_ = old_;
    added_.resize(old_.size());
  }

  /// `values`: none to take the flag out.
  void flag(const std::string& name, const std::vector<std::string>* values) {
    std::string words = name;
    if (values != nullptr) {
      if (yaml_ && values->size() > 1) {
        words += ": \"[" + fmt::format("{}", fmt::join(*values, " ")) + "]\"";
      } else if (yaml_) {
        words += ": " + (values->empty() ? "true" : scenario::yaml_scalar(values->front()));
      } else {
        for (const auto& value : *values) words += " " + quoted(value);
      }
    }
    if (const auto found = find(name)) {
      replace(*found, name.size(), values == nullptr ? "" : words);
    } else if (values != nullptr) {
      add(words);
    } else {
      remarks_ += "# take out " + name + ": it comes out of an expansion\n";
    }
  }

  void variable(const std::string& name, const std::string& value) {
    const std::string text = yaml_ ? name + ": " + scenario::yaml_scalar(value) : name + "=" + quoted(value);
    for (std::size_t i = 0; i < old_.size(); ++i) {
      const auto at = old_[i].find(name + (yaml_ ? ":" : "="));
      const auto first = old_[i].find_first_not_of(" \t");
      const bool stands =
          at != std::string::npos && (at == 0 || std::isspace(static_cast<unsigned char>(old_[i][at - 1])) != 0);
      if (!stands || old_[i][first] == '#') continue;
      std::size_t end = at + name.size() + 1;
      if (yaml_)
        end = old_[i].size();
      else
        end = word_end(new_[i], end);
      if (value.empty()) {
        new_[i].clear();
        return;
      }
      new_[i] = new_[i].substr(0, at) + text + new_[i].substr(std::min(end, new_[i].size()));
      return;
    }
    if (value.empty()) return;
    if (!yaml_) {
      const std::size_t line = !old_.empty() && old_.front().starts_with("#!") ? 0 : old_.size();
      (line == 0 ? added_[0] : before_).push_back("export " + text);
      return;
    }
    for (std::size_t i = 0; i < old_.size(); ++i)
      if (old_[i].starts_with("ENV_VARS:")) return added_[i].push_back("  " + text);
  }

  std::string text() const {
    std::string out = remarks_;
    const auto plus = [&](const std::vector<std::string>& lines, std::size_t number) {
      if (lines.empty()) return;
      out += fmt::format("@@ after line {} @@\n", number);
      for (const auto& line : lines) out += "+" + line + "\n";
    };
    plus(before_, 0);
    for (std::size_t i = 0; i < old_.size(); ++i) {
      if (new_[i] != old_[i]) {
        out += fmt::format("@@ line {} @@\n-{}\n", i + 1, old_[i]);
        // A line that held nothing else goes; the backslash that continued it with it.
        if (new_[i].find_first_not_of(" \t\\\r") != std::string::npos) out += "+" + new_[i] + "\n";
      }
      plus(added_[i], i + 1);
    }
    return out;
  }

 private:
  struct Found {
    std::size_t line, at;
  };

  /// The flag as a word of its own, outside of comments; dashes and underscores are the same to argparse's users.
  std::optional<Found> find(const std::string& name) const {
    for (std::size_t i = 0; i < old_.size(); ++i) {
      const std::string& row = new_[i];
      std::string dashes = row;
      std::replace(dashes.begin(), dashes.end(), '_', '-');
      const auto comment = row.find_first_not_of(" \t");
      if (comment == std::string::npos || row[comment] == '#') continue;
      for (auto at = dashes.find(name); at != std::string::npos; at = dashes.find(name, at + 1)) {
        const char after = at + name.size() < row.size() ? row[at + name.size()] : ' ';
        const bool begins = at == 0 || std::string_view(" \t\"'(").find(row[at - 1]) != std::string_view::npos;
        if (begins && std::isalnum(static_cast<unsigned char>(after)) == 0 && after != '-' && after != '_')
          return Found{i, at};
      }
    }
    return {};
  }

  static std::size_t word_end(const std::string& row, std::size_t at) {
    char quote = 0;
    for (; at < row.size(); ++at) {
      const char c = row[at];
      if (quote != 0) {
        quote = c == quote ? '\0' : quote;
      } else if (c == '"' || c == '\'') {
        quote = c;
      } else if (c == ' ' || c == '\t' || c == ')' || c == ';' || c == '\r') {
        break;
      }
    }
    return at;
  }

  void replace(const Found& found, std::size_t length, const std::string& words) {
    std::string& row = new_[found.line];
    std::size_t end = found.at + length;
    if (yaml_) {
      row = row.substr(0, found.at) + words;
      return;
    }
    // In "--flag value" between quotes the quote ends the values; else the next flag, bracket, comment or backslash
    // does.
    const char around =
        found.at > 0 && (row[found.at - 1] == '"' || row[found.at - 1] == '\'') ? row[found.at - 1] : '\0';
    if (around != 0) {
      end = std::min(row.find(around, end), row.size());
      const auto next = row.substr(found.at, end - found.at).find(" --");
      if (next != std::string::npos) end = found.at + next;
    } else {
      if (end < row.size() && row[end] == '=') end = word_end(row, end);
      for (;;) {
        const auto begin = row.find_first_not_of(" \t", end);
        if (begin == std::string::npos || std::string_view("\\#)").find(row[begin]) != std::string_view::npos ||
            row.compare(begin, 2, "--") == 0 || row[begin] == '"')
          break;
        end = word_end(row, begin);
      }
    }
    std::string rest = row.substr(end);
    if (words.empty() && rest.starts_with(' ')) rest.erase(0, 1);
    row = row.substr(0, found.at) + words + rest;
  }

  /// Beside the first flag that every run has, in the same form.
  void add(const std::string& words) {
    for (const auto* anchor : {"--num-layers", "--hidden-size", "--micro-batch-size"}) {
      const auto found = find(anchor);
      if (!found) continue;
      const std::string& row = old_[found->line];
      const auto indent = row.substr(0, row.find_first_not_of(" \t"));
      auto last = row.find_last_not_of(" \t\r");
      const bool continued = last != std::string::npos && row[last] == '\\';
      const bool alone =
          indent.size() == found->at || (found->at > 0 && row[found->at - 1] == '"' && indent.size() + 1 == found->at);
      if (yaml_ || alone) {
        added_[found->line].push_back(indent + words + (continued ? " \\" : ""));
      } else {
        new_[found->line].insert(found->at, words + " ");
      }
      return;
    }
    remarks_ += "# add " + words + "\n";
  }

  bool yaml_;
  std::vector<std::string> old_, new_, before_;
  std::vector<std::vector<std::string>> added_;  ///< after the line
  std::string remarks_;
};

}  // namespace

std::string script_diff(std::string_view script, const Scenario& given, const Scenario& planned) {
  const auto before = flag_words(given), after = flag_words(planned);
  std::set<std::string> names;
  for (const auto* flags : {&before, &after})
    for (const auto& [name, values] : *flags) names.insert(name);
  ScriptDiff diff(script);
  for (const auto& name : names) {
    const auto was = before.find(name), is = after.find(name);
    if (was != before.end() && is != after.end() && was->second == is->second) continue;
    diff.flag(name, is == after.end() ? nullptr : &is->second);
  }
  const auto old_variables = given.environment, new_variables = variables(planned);
  for (const auto& [name, value] : new_variables)
    if (const auto at = old_variables.find(name); at == old_variables.end() || at->second != value)
      diff.variable(name, value);
  for (const auto& [name, value] : old_variables)
    if (!new_variables.contains(name)) diff.variable(name, "");
  return diff.text();
}

}  // namespace pipewright::emit
