// Expanding words; bash's manual, "Shell Expansions", as far as launch scripts use it.
#include "shell_words.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <charconv>

namespace pipewright::emit {

namespace {

/// Expands one raw word into fields.
class Expander {
 public:
  Expander(ShellState& state, const ShellReader& reader, int line, bool splits, int depth = 0)
      : state_(state), reader_(reader), line_(line), splits_(splits), depth_(depth) {
    if (depth > 20) throw reader.error("expansions within each other without end");
  }

  std::vector<ShellWord> run(std::string_view text) {
    for (std::size_t i = 0; i < text.size();) {
      const char c = text[i];
      if (c == '\\') {
        if (i + 1 < text.size()) put(text[i + 1]);
        i += 2;
      } else if (c == '\'') {
        const auto end = std::min(text.find('\'', i + 1), text.size());
        put(text.substr(i + 1, end - i - 1));
        i = end + 1;
      } else if (c == '"') {
        i = quoted(text, i + 1);
      } else if (c == '`') {
        i = backquoted(text, i, !splits_);
      } else if (c == '$') {
        i = dollar(text, i, !splits_);
      } else {
        put(c);
        ++i;
      }
    }
    finish();
    return std::move(fields_);
  }

 private:
  void put(std::string_view text) {
    if (now_.text.size() + text.size() > ShellState::longest) throw reader_.error("a word of more than 1 MiB");
    now_.text += text;
    if (now_.line == 0) now_.line = line_;
    open_ = true;
  }
  void put(char c) { put(std::string_view(&c, 1)); }
  void finish() {
    if (open_) {
      if (++state_.words > 100'000) throw reader_.error("more than 100,000 words");
      fields_.push_back(std::move(now_));
    }
    now_ = {};
    open_ = false;
  }
  /// An expansion outside of quotes is split at blanks.
  void put_split(const ShellWord& value) {
    for (const char c : value.text) {
      if (blank(c) || c == '\n') {
        finish();
      } else {
        if (!open_) now_.line = value.line;
        put(c);
      }
    }
  }

  std::size_t quoted(std::string_view text, std::size_t i) {
    const bool was_open = open_;
    nothing_ = false;
    open_ = true;
    if (now_.line == 0) now_.line = line_;
    while (i < text.size() && text[i] != '"') {
      if (text[i] == '\\' && i + 1 < text.size() &&
          std::string_view("\\\"$`\n").find(text[i + 1]) != std::string_view::npos) {
        if (text[i + 1] != '\n') put(text[i + 1]);
        i += 2;
      } else if (text[i] == '$') {
        i = dollar(text, i, true);
      } else if (text[i] == '`') {
        i = backquoted(text, i, true);
      } else {
        put(text[i++]);
      }
    }
    if (nothing_ && now_.text.empty()) open_ = was_open;  // "$@" and "${NONE[@]}" are no word at all
    return i + 1;
  }

  std::size_t backquoted(std::string_view text, std::size_t i, bool in_quotes) {
    const auto end = std::min(text.find('`', i + 1), text.size());
    output(text.substr(i + 1, end - std::min(end, i + 1)), in_quotes);
    return end + 1;
  }
  /// What the command prints; that of one that would have to run stays unknown.
  void output(std::string_view command, bool in_quotes) {
    const auto printed = state_.output ? state_.output(command, line_) : std::nullopt;
    if (!printed)
      put("${command}");
    else if (in_quotes)
      put(*printed);
    else
      put_split({*printed, line_});
  }

  void calculated(std::string_view raw) {
    const std::string text = text_of(raw);
    const auto value = arithmetic(text, state_);
    if (value) return put(std::to_string(*value));
    const auto open = text.find("${"), close = text.find('}', std::min(open, text.size()));
    const auto name = close == std::string::npos ? std::string() : text.substr(open, close + 1 - open);
    const bool asked = name.size() > 3 && std::all_of(name.begin() + 2, name.end() - 1, name_char);
    put(asked ? name : "${arithmetic}");  // what it needs can be given
  }

  static std::size_t closing(std::string_view text, std::size_t i, char open, char close) {
    int depth = 0;
    for (; i < text.size(); ++i) {
      if (text[i] == '\\') {
        ++i;
      } else if (text[i] == '\'') {
        const auto end = text.find('\'', i + 1);
        if (end == std::string_view::npos) return text.size();
        i = end;
      } else if (text[i] == open) {
        ++depth;
      } else if (text[i] == close && --depth == 0) {
        return i;
      }
    }
    return text.size();
  }

  std::size_t dollar(std::string_view text, std::size_t i, bool in_quotes) {
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    if (next == '\'' && !in_quotes) {
      const auto end = std::min(text.find('\'', i + 2), text.size());
      put(text.substr(i + 2, end - i - 2));
      return end + 1;
    }
    if (next == '(') {
      const auto end = closing(text, i + 1, '(', ')');
      if (text.substr(i, 3) == "$((") {
        calculated(end > i + 3 ? text.substr(i + 3, end - i - 4) : "");
      } else {
        output(text.substr(i + 2, end - std::min(end, i + 2)), in_quotes);
      }
      return end + 1;
    }
    if (next == '[') {
      const auto end = closing(text, i + 1, '[', ']');
      calculated(text.substr(i + 2, end - i - 2));
      return end + 1;
    }
    if (next == '{') {
      const auto end = closing(text, i + 1, '{', '}');
      parameter(text.substr(i + 2, end - i - 2), in_quotes);
      return end + 1;
    }
    std::size_t end = i + 1;
    if (name_char(next) && std::isdigit(static_cast<unsigned char>(next)) == 0)
      while (end < text.size() && name_char(text[end])) ++end;
    else if (next != '\0' && (name_char(next) || std::string_view("@*#?$!-").find(next) != std::string_view::npos))
      ++end;
    if (end == i + 1) {
      put('$');
      return end;
    }
    parameter(text.substr(i + 1, end - i - 1), in_quotes);
    return end;
  }

  void insert(const std::vector<ShellWord>& values, bool all, bool separate, bool in_quotes) {
    nothing_ = nothing_ || (values.empty() && separate);
    if (values.empty()) return;
    if (!in_quotes) {
      for (std::size_t k = 0; k < (all ? values.size() : 1); ++k) {
        if (k > 0) finish();
        put_split(values[k]);
      }
      return;
    }
    for (std::size_t k = 0; k < (all ? values.size() : 1); ++k) {
      if (k > 0 && separate && splits_)
        finish();
      else if (k > 0)
        put(' ');
      if (!open_) now_.line = values[k].line;
      put(values[k].text);
    }
  }

  void parameter(std::string_view inner, bool in_quotes) {
    const auto unknown = [&] { put("${" + std::string(inner) + "}"); };
    if (inner.empty()) return unknown();
    if (inner[0] == '!' && inner.size() > 1) {  // the variable whose name this variable holds
      std::size_t named = 1;
      while (named < inner.size() && name_char(inner[named])) ++named;
      const auto pointer = state_.scalars.find(std::string(inner.substr(1, named - 1)));
      const bool name = pointer != state_.scalars.end() && !pointer->second.text.empty() &&
                        std::ranges::all_of(pointer->second.text, name_char);
      return name ? parameter(pointer->second.text + std::string(inner.substr(named)), in_quotes) : unknown();
    }
    const bool length = inner[0] == '#' && inner.size() > 1;
    std::string_view rest = length ? inner.substr(1) : inner, index;
    std::size_t end = 0;
    while (end < rest.size() && name_char(rest[end])) ++end;
    if (end == 0) end = 1;  // @ * # ? $
    const std::string name(rest.substr(0, end));
    rest.remove_prefix(end);
    if (rest.starts_with('[')) {
      const auto close = std::min(rest.find(']'), rest.size() - 1);
      index = rest.substr(1, close - 1);
      rest.remove_prefix(close + 1);
    }
    bool all = index == "@" || index == "*";
    const bool arguments = name == "@" || name == "*";
    if (name == "#") return state_.arguments ? put(std::to_string(state_.arguments->size())) : unknown();

    std::vector<ShellWord> values;
    bool set = false;
    if (arguments) {  // none of the script's own
      values = state_.arguments.value_or(std::vector<ShellWord>());
      all = true;
      index = name == "@" ? "@" : "*";
    } else if (const auto argument = state_.arguments ? number_of(name) : 0; argument > 0) {
      if (argument <= state_.arguments->size()) values = {(*state_.arguments)[argument - 1]};
      set = !values.empty();
      if (!set && rest.empty()) return;
    } else if (const auto table = state_.tables.find(name); table != state_.tables.end() && !index.empty()) {
      const std::string key = text_of(index);
      for (const auto& [one, value] : table->second)
        if (all || one == key) values.push_back(value);
      set = !values.empty();
      if (!set && !all && rest.empty()) return length ? put('0') : void();
      if (!all) index = {};
    } else {
      const auto array = state_.arrays.find(name);
      const auto scalar = state_.scalars.find(name);
      set = array != state_.arrays.end() || scalar != state_.scalars.end();
      if (array != state_.arrays.end()) values = array->second;
      if (scalar != state_.scalars.end()) values = {scalar->second};
      if (!index.empty() && !all) {
        auto number = arithmetic(text_of(index), state_);
        if (!number) return unknown();
        if (*number < 0) number = static_cast<std::int64_t>(values.size()) + *number;
        const bool inside = *number >= 0 && static_cast<std::size_t>(*number) < values.size();
        values = inside ? std::vector{values[static_cast<std::size_t>(*number)]} : std::vector<ShellWord>{};
      }
    }
    const auto is_unknown = [](const ShellWord& value) { return is_open(value.text); };
    if (length) {
      // An element that is nothing but what is not known may have been several.
      if (all && std::ranges::any_of(values, [](const auto& one) { return is_unset_variable(one.text); }))
        return unknown();
      if (!all && std::ranges::any_of(values, is_unknown)) return unknown();
      return put(std::to_string(all ? values.size() : values.empty() ? 0 : values.front().text.size()));
    }
    if (!rest.empty()) {
      const bool colon =
          rest.starts_with(':') && rest.size() > 1 && std::string_view("-=+?").find(rest[1]) != std::string_view::npos;
      const char op = rest[colon ? 1 : 0];
      const bool usable =
          (set || (arguments && !values.empty())) && !(colon && (values.empty() || values.front().text.empty()));
      const auto other = [&] {
        return Expander(state_, reader_, line_, !in_quotes && splits_, depth_ + 1).run(rest.substr(colon ? 2 : 1));
      };
      if (op == '+') {
        if (usable) insert(other(), true, true, in_quotes);
        return;
      }
      if (op == '-' || op == '=') {
        if (usable) return insert(values, all, index == "@", in_quotes);
        const auto fallback = other();
        if (op == '=') {
          std::string text;
          for (const auto& word : fallback) text += (text.empty() ? "" : " ") + word.text;
          state_.scalars[name] = {text, line_};
        }
        return insert(fallback, true, true, in_quotes);
      }
      if (op != '?') {  // ${NAME%.*}, ${NAME/a/b}, ${NAME:3}
        if ((!set && !all) || std::ranges::any_of(values, is_unknown)) return unknown();
        if (!all && values.size() > 1) values.resize(1);
        if (!(op == ':' ? slice(values, rest.substr(1), all, arguments) : changed(values, rest))) return unknown();
      }
    }
    if (!set && !all) return unknown();
    insert(values, all, index == "@", in_quotes);
  }

  /// "12" -> 12; 0: no number of an argument.
  static std::size_t number_of(std::string_view name) {
    std::size_t number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    return error == std::errc() && end == name.data() + name.size() ? number : 0;
  }

  std::string text_of(std::string_view raw) {
    std::string text;
    for (const auto& word : Expander(state_, reader_, line_, false, depth_ + 1).run(raw)) text += word.text;
    return text;
  }

  /// ${NAME:FROM:LENGTH} of a text or of a list; arguments count from 1. False: not known.
  bool slice(std::vector<ShellWord>& values, std::string_view range, bool all, bool arguments) {
    const auto colon = range.find(':');
    const auto from = arithmetic(text_of(range.substr(0, colon)), state_);
    const auto length = colon == std::string_view::npos ? std::optional<std::int64_t>(INT32_MAX)
                                                        : arithmetic(text_of(range.substr(colon + 1)), state_);
    if (!from || !length || (arguments && *from < 1)) return false;
    const auto cut = [&](auto& sequence) {
      const auto size = static_cast<std::int64_t>(sequence.size());
      std::int64_t begin = *from - (arguments ? 1 : 0);
      if (begin < 0) begin += size;
      begin = std::clamp<std::int64_t>(begin, 0, size);
      if (*from < 0 && *from + size < 0) begin = size;
      const auto end = *length < 0 ? std::max(begin, size + *length) : begin + std::min(size - begin, *length);
      sequence = std::remove_cvref_t<decltype(sequence)>(sequence.begin() + begin, sequence.begin() + end);
    };
    if (all) {
      cut(values);
    } else {
      for (auto& value : values) cut(value.text);
    }
    return true;
  }

  /// ${NAME#pattern}, ##, %, %%, /pattern/text, //, /#, /%, ^, ^^, ",", ",,". False: another operator, or too long.
  bool changed(std::vector<ShellWord>& values, std::string_view rest) {
    const char op = rest[0];
    rest.remove_prefix(1);
    const bool twice = rest.starts_with(op);
    if (twice) rest.remove_prefix(1);
    constexpr std::size_t longest = 4096;  // bytes: every part of a value may have to be compared with the pattern
    if (std::string_view("#%/^,").find(op) == std::string_view::npos ||
        std::ranges::any_of(values, [](const ShellWord& value) { return value.text.size() > longest; }))
      return false;
    const auto matches = [](const std::string& pattern, std::string_view text) {
      return fnmatch(pattern.c_str(), std::string(text).c_str(), 0) == 0;
    };
    if (op == '^' || op == ',') {
      if (!rest.empty()) return false;
      for (auto& value : values)
        for (std::size_t i = 0; i < (twice ? value.text.size() : std::min<std::size_t>(1, value.text.size())); ++i) {
          const auto c = static_cast<unsigned char>(value.text[i]);
          value.text[i] = static_cast<char>(op == '^' ? std::toupper(c) : std::tolower(c));
        }
      return true;
    }
    if (op == '#' || op == '%') {
      const std::string pattern = text_of(rest);
      if (is_open(pattern)) return false;
      for (auto& value : values) {
        const std::size_t size = value.text.size();
        for (std::size_t n = 0; n <= size; ++n) {
          const std::size_t cut = twice ? size - n : n;
          const std::string_view all = value.text;
          if (!matches(pattern, op == '#' ? all.substr(0, cut) : all.substr(size - cut))) continue;
          value.text = op == '#' ? value.text.substr(cut) : value.text.substr(0, size - cut);
          break;
        }
      }
      return true;
    }
    const bool at_begin = !twice && rest.starts_with('#'), at_end = !twice && rest.starts_with('%');
    if (at_begin || at_end) rest.remove_prefix(1);
    std::size_t slash = 0;
    while (slash < rest.size() && rest[slash] != '/') slash += rest[slash] == '\\' ? 2 : 1;
    slash = std::min(slash, rest.size());
    const std::string pattern = text_of(rest.substr(0, slash));
    const std::string into = text_of(slash < rest.size() ? rest.substr(slash + 1) : "");
    if (is_open(pattern) || is_open(into)) return false;
    constexpr std::size_t longest_replaced = 512;
    for (auto& value : values) {
      if (value.text.size() > longest_replaced) return false;
      std::string out;
      const std::string_view text = value.text;
      bool replaced = false;
      for (std::size_t at = 0; at <= text.size();) {
        std::size_t length = std::string_view::npos;
        if ((twice || !replaced) && !(at_begin && at > 0))
          for (std::size_t n = text.size() - at + 1; n-- > (at_begin || at_end ? 0 : 1);)
            if ((!at_end || at + n == text.size()) && matches(pattern, text.substr(at, n))) {
              length = n;
              break;
            }
        if (length != std::string_view::npos) {
          out += into;
          replaced = true;
          at += length;
          if (length > 0) continue;
        }
        if (at < text.size()) out += text[at];
        ++at;
      }
      value.text = std::move(out);
    }
    return true;
  }

  ShellState& state_;
  const ShellReader& reader_;
  int line_;
  bool splits_;
  int depth_;
  std::vector<ShellWord> fields_;
  ShellWord now_;
  bool open_ = false;
  bool nothing_ = false;  ///< a list without elements stood between the quotes
};

/// Behind the ${ } or $( ) that begins here; otherwise `at`.
std::size_t end_of_expansion(std::string_view text, std::size_t at) {
  if (text[at] != '$' || at + 1 >= text.size() || (text[at + 1] != '{' && text[at + 1] != '(')) return at;
  const char open = text[at + 1], close = open == '{' ? '}' : ')';
  int depth = 0;
  for (++at; at < text.size(); ++at) {
    depth += (text[at] == open) - (text[at] == close);
    if (depth == 0) return at + 1;
  }
  return at;
}

/// a{b,c}{1..3} -> ab1 ab2 ab3 ac1 ...; quotes and ${} protect.
void expand_braces(const std::string& text, std::vector<std::string>& out, std::size_t from = 0) {
  constexpr std::size_t most = 10'000;
  char quote = 0;
  for (std::size_t i = from; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\' && quote != '\'') {
      ++i;
    } else if (quote != 0) {
      quote = c == quote ? '\0' : quote;
    } else if (c == '"' || c == '\'' || c == '`') {
      quote = c;
    } else if (const auto expansion = end_of_expansion(text, i); expansion > i) {
      i = expansion - 1;
    } else if (c == '{') {
      std::vector<std::string> choices(1);
      int depth = 0;
      std::size_t end = i + 1;
      for (; end < text.size() && (depth > 0 || text[end] != '}'); ++end) {
        if (std::string_view("\"'`\\").find(text[end]) != std::string_view::npos) return out.push_back(text);
        if (const auto within = end_of_expansion(text, end); within > end) {
          choices.back() += text.substr(end, within - end);
          end = within - 1;
          continue;
        }
        depth += (text[end] == '{') - (text[end] == '}');
        if (text[end] == ',' && depth == 0)
          choices.emplace_back();
        else
          choices.back() += text[end];
      }
      if (end >= text.size()) continue;
      if (const auto dots = choices.front().find(".."); choices.size() == 1 && dots != std::string::npos) {
        std::int64_t first = 0, last = 0;
        const auto reads = [](std::string_view number, std::int64_t& value) {
          const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), value);
          return error == std::errc() && stop == number.data() + number.size() && number.size() < 7;
        };
        const std::string_view range = choices.front();
        if (!reads(range.substr(0, dots), first) || !reads(range.substr(dots + 2), last)) continue;
        choices.clear();
        for (auto n = first; choices.size() < most; n += first <= last ? 1 : -1) {
          choices.push_back(std::to_string(n));
          if (n == last) break;
        }
      } else if (choices.size() == 1) {
        continue;
      }
      for (const auto& choice : choices) {
        if (out.size() >= most) return;
        expand_braces(text.substr(0, i) + choice + text.substr(end + 1), out, i);
      }
      return;
    }
  }
  out.push_back(text);
}

}  // namespace

void expand(const Raw& raw, ShellState& state, const ShellReader& reader, std::vector<ShellWord>& out) {
  std::vector<std::string> texts;
  expand_braces(raw.text, texts);
  for (const auto& text : texts)
    for (auto& word : Expander(state, reader, raw.line, true).run(text)) out.push_back(std::move(word));
}

ShellWord joined(const Raw& raw, ShellState& state, const ShellReader& reader) {
  ShellWord word{"", raw.line};
  for (const auto& part : Expander(state, reader, raw.line, false).run(raw.text))
    word.text += (word.text.empty() ? "" : " ") + part.text;
  return word;
}

std::optional<ShellWord> ShellState::known(const std::string& name) const {
  if (const auto scalar = scalars.find(name); scalar != scalars.end()) return scalar->second;
  const auto array = arrays.find(name);
  if (array == arrays.end() || array->second.empty()) return {};
  return array->second.front();
}

void assign_scalar(ShellState& state, const std::string& name, ShellWord value) {
  if (const auto array = state.arrays.find(name); array != state.arrays.end() && !array->second.empty())
    array->second.front() = std::move(value);
  else
    state.scalars[name] = std::move(value);
}

void forget(ShellState& state, const std::string& name) {
  state.scalars.erase(name);
  state.arrays.erase(name);
  state.tables.erase(name);
}

std::size_t assignment(std::string_view word) {
  std::size_t n = 0;
  while (n < word.size() && name_char(word[n])) ++n;
  if (n == 0 || std::isdigit(static_cast<unsigned char>(word[0])) != 0) return std::string_view::npos;
  if (n < word.size() && word[n] == '[')
    if (const auto close = word.find("]=", n); close != std::string_view::npos) return close + 1;
  if (n < word.size() && word[n] == '+') ++n;
  return n < word.size() && word[n] == '=' ? n : std::string_view::npos;
}

std::vector<std::string> split_words(std::string_view line) {
  std::vector<std::string> words;
  std::string word;
  bool open = false;
  char quote = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote != 0 ? c == quote : c == '"' || c == '\'') {
      quote = quote != 0 ? '\0' : c;
      open = true;
    } else if (quote == 0 && (blank(c) || c == '\n')) {
      if (open) words.push_back(std::move(word));
      word.clear();
      open = false;
    } else {
      if (c == '\\' && quote != '\'' && i + 1 < line.size() && line[++i] == '\n') continue;
      word += line[i];
      open = true;
    }
  }
  if (open) words.push_back(std::move(word));
  return words;
}

}  // namespace pipewright::emit
