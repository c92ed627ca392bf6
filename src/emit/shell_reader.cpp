// Cutting a script into words: quotes, brackets, comments, redirections and here-documents.
#include <algorithm>
#include <cctype>
#include <utility>

#include "shell_words.hpp"

namespace pipewright::emit {

ShellReader::ShellReader(std::string_view text, const std::string& file, std::optional<int> line)
    : text_(text), file_(file), line_(line) {
  if (text.size() > ShellState::longest) throw UsageError({file, 0}, {}, "larger than 1 MiB: not a launch script");
  if (text.find('\0') != std::string_view::npos) throw UsageError({file, 0}, {}, "a NUL byte: not a launch script");
}

void ShellReader::advance(std::size_t n) {
  for (; n > 0 && now_.at < text_.size(); --n) {
    const bool newline = text_[now_.at++] == '\n';
    now_.line += newline;
    if (!newline || here_documents_.empty()) continue;
    const auto documents = std::exchange(here_documents_, {});
    for (const auto& [delimiter, expands] : documents) {
      for (bool found = false; !found && now_.at < text_.size(); ++now_.line) {
        const auto end = std::min(text_.find('\n', now_.at), text_.size());
        auto row = text_.substr(now_.at, end - now_.at);
        while (row.starts_with('\t')) row.remove_prefix(1);
        found = row == delimiter;
        now_.at = std::min(end + 1, text_.size());
      }
    }
    n = std::min<std::size_t>(n, 1);
  }
}

void ShellReader::skip_blanks() {
  for (;;) {
    if (blank(at())) {
      advance();
    } else if (at() == '\\' && at(1) == '\n') {
      advance(2);
    } else if (at() == '\\' && at(1) == '\r' && at(2) == '\n') {
      advance(3);
    } else if (at() == '#' && (now_.at == 0 || blank(text_[now_.at - 1]) || text_[now_.at - 1] == '\n' ||
                               ends_word(text_[now_.at - 1]))) {
      while (at() != '\n' && at() != '\0') advance();
    } else {
      return;
    }
  }
}

bool ShellReader::at_end() {
  skip_blanks();
  return now_.at >= text_.size();
}

std::string_view ShellReader::peek_word() {
  skip_blanks();
  for (const std::string_view two : {"((", ";;"})
    if (text_.substr(now_.at).starts_with(two)) return text_.substr(now_.at, 2);
  if (at() == '(' || at() == ')') return text_.substr(now_.at, 1);
  std::size_t end = now_.at;
  while (end < text_.size() && !ends_word(text_[end])) ++end;
  return text_.substr(now_.at, end - now_.at);
}

std::string_view ShellReader::take_word() {
  const auto word = peek_word();
  advance(word.size());
  return word;
}

std::string_view ShellReader::take_operator() {
  skip_blanks();
  for (const std::string_view op : {"&&", "||"})
    if (text_.substr(now_.at).starts_with(op)) {
      advance(2);
      return op;
    }
  if (at() == ';' && at(1) == ';') return {};
  for (const std::string_view op : {"|", "&", ";", "\n"})
    if (at() == op[0]) {
      advance();
      return op;
    }
  if (at() != '\0' && at() != ')' && peek_word().empty()) throw error(std::string("not understood: ") + at());
  return {};
}

void ShellReader::skip_separators() {
  for (skip_blanks(); at() == '\n' || (at() == ';' && at(1) != ';'); skip_blanks()) advance();
}

/// Skips [N]> file, &> file, < file, << WORD, <<< word; false: none stands here.
bool ShellReader::redirection() {
  skip_blanks();
  std::size_t n = 0;
  while (std::isdigit(static_cast<unsigned char>(at(n))) != 0) ++n;
  if (at(n) == '&' && at(n + 1) == '>') ++n;
  if (at(n) != '<' && at(n) != '>') return false;
  if (at(n + 1) == '(') return false;  // <(command)
  const bool here = at(n) == '<' && at(n + 1) == '<' && at(n + 2) != '<';
  const bool text_itself = at(n) == '<' && at(n + 1) == '<' && at(n + 2) == '<';
  while (at(n) == '<' || at(n) == '>' || at(n) == '&' || at(n) == '|') ++n;
  if (here && at(n) == '-') ++n;
  advance(n);
  skip_blanks();
  Raw target{"", line()};
  if (at(1) == '(') take_quoted(target.text);  // < <(command)
  while (!ends_word(at())) take_quoted(target.text);
  if (here) {
    const auto quotes = std::erase_if(target.text, [](char c) { return c == '\'' || c == '"' || c == '\\'; });
    here_documents_.push_back({target.text, quotes == 0});
  } else if (text_itself) {
    here_string_ = std::move(target);
  }
  return true;
}

std::optional<Raw> ShellReader::coming_document() const {
  if (here_documents_.empty()) return std::nullopt;
  const auto& [delimiter, expands] = here_documents_.front();
  const auto newline = text_.find('\n', now_.at);
  if (newline == std::string_view::npos) return std::nullopt;
  Raw document{expands ? "\"" : "'", line_.value_or(now_.line + 1)};
  for (auto at = newline + 1; at < text_.size();) {
    const auto end = std::min(text_.find('\n', at), text_.size());
    auto row = text_.substr(at, end - at);
    while (row.starts_with('\t')) row.remove_prefix(1);
    if (row == delimiter) break;
    for (const char c : row) {
      if (expands && c == '"') document.text += '\\';
      document.text += !expands && c == '\'' ? ' ' : c;
    }
    document.text += '\n';
    at = end + 1;
  }
  document.text += expands ? '"' : '\'';
  return document;
}

void ShellReader::skip_redirections() {
  while (redirection()) {
  }
}

bool ShellReader::at_function() {
  skip_blanks();
  std::size_t n = 0;
  while (name_char(at(n)) || at(n) == '-') ++n;
  if (n == 0) return false;
  while (blank(at(n))) ++n;
  return at(n) == '(' && at(n + 1) == ')';
}

std::string ShellReader::take_function_name() {
  const std::string name(take_word());
  skip_blanks();
  if (at() == '(' && at(1) == ')') advance(2);
  return name;
}

std::string ShellReader::take_arithmetic() {
  skip_blanks();
  std::string text;
  take_balanced(text, '(', ')');
  return text.size() < 4 ? "" : text.substr(2, text.size() - 4);
}

std::vector<Raw> ShellReader::take_patterns() {
  std::vector<Raw> patterns;
  skip_blanks();
  if (at() == '(') advance();
  for (;;) {
    const auto raw = next_raw();
    if (!raw) throw error("a pattern is missing in case");
    patterns.push_back(*raw);
    skip_blanks();
    const char c = at();
    if (c != '|' && c != ')') throw error("\")\" is missing after a pattern");
    advance();
    if (c == ')') return patterns;
  }
}

/// One character of a word, or a whole quoted or bracketed part of it.
void ShellReader::take_quoted(std::string& out) {
  const char c = at();
  const auto one = [&] {
    out += at();
    advance();
  };
  if (c == '\\') {
    if (at(1) == '\n') return advance(2);
    one();
    if (at() != '\0') one();
    return;
  }
  if (c == '$' && (at(1) == '(' || at(1) == '{')) {
    one();
    return take_balanced(out, at(), at() == '(' ? ')' : '}');
  }
  if ((c == '<' || c == '>') && at(1) == '(') {
    one();
    return take_balanced(out, '(', ')');
  }
  if (c == '\'' || c == '"' || c == '`') {
    const int line = now_.line;
    one();
    while (at() != c) {
      if (at() == '\0') throw UsageError({file_, line}, {}, std::string("a quote ") + c + " is not closed");
      if (c != '\'' && at() == '\\') {
        one();
        if (at() != '\0') one();
      } else if (c == '"' && at() == '$' && (at(1) == '(' || at(1) == '{')) {
        take_quoted(out);
      } else {
        one();
      }
    }
    return one();
  }
  one();
}

void ShellReader::take_balanced(std::string& out, char open, char close) {
  const int line = now_.line;
  int depth = 0, nested = 0;
  do {
    const char c = at();
    if (c == '\0' || ++nested > 1'000'000)
      throw UsageError({file_, line}, {}, std::string("a bracket ") + open + " is not closed");
    if (c == '\\' || c == '\'' || c == '"' || c == '`') {
      take_quoted(out);
      continue;
    }
    depth += (c == open) - (c == close);
    out += c;
    advance();
  } while (depth > 0);
}

std::optional<Raw> ShellReader::next_raw(bool test) {
  for (;;) {
    skip_blanks();
    if (test && at() == '\n') {
      advance();
    } else if (test || !redirection()) {
      break;
    }
  }
  Raw raw{"", line()};
  const auto ends = [&](char c) {
    return test ? c == '\0' || blank(c) || c == '\n' : ends_word(c) && !((c == '<' || c == '>') && at(1) == '(');
  };
  const auto begin = now_.at;
  while (!ends(at()) && !(test && raw.text == "]]")) take_quoted(raw.text);  // [[ ... ]]; without a blank
  if (now_.at == begin) return std::nullopt;
  return raw;
}

std::optional<std::vector<Raw>> ShellReader::array_after(const Raw& name, std::size_t equals) {
  if (equals + 1 != name.text.size() || at() != '(') return std::nullopt;
  const int line = now_.line;
  advance();
  std::vector<Raw> words;
  for (;;) {
    skip_blanks();
    if (at() == '\n') {
      advance();
    } else if (at() == ')') {
      advance();
      return words;
    } else if (auto raw = next_raw()) {
      words.push_back(std::move(*raw));
    } else {
      throw UsageError({file_, line}, name.text.substr(0, equals), "the array's bracket ( is not closed");
    }
  }
}

}  // namespace pipewright::emit
