// Words of a shell script: cut out of the text with their quotes, and expanded with the variables known so far.
#pragma once

#include <cctype>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shell.hpp"

namespace pipewright::emit {

/// A word as it is written, quotes and expansions included.
struct Raw {
  std::string text;
  int line = 0;
};

struct ShellState {
  static constexpr std::size_t longest = std::size_t{1} << 20U;  ///< bytes of a script and of a value
  std::map<std::string, ShellWord> scalars;
  std::map<std::string, std::vector<ShellWord>> arrays;
  std::map<std::string, std::map<std::string, ShellWord>> tables;  ///< arrays whose keys are words (declare -A)
  std::set<std::string> exported;
  /// $1, $2, ... of a function, or what `set --` said; nullopt: the script's own, which nobody knows.
  std::optional<std::vector<ShellWord>> arguments;
  std::size_t words = 0;  ///< made so far
  /// What a command in $( ) prints, where that is known without running anything.
  std::function<std::optional<std::string>(std::string_view command, int line)> output;

  /// $NAME: a variable, or an array's first element.
  std::optional<ShellWord> known(const std::string& name) const;
};

inline bool name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
inline bool blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
inline bool ends_word(char c) {
  return c == '\0' || blank(c) || std::string_view("\n;&|()<>").find(c) != std::string_view::npos;
}

class ShellReader {
 public:
  struct Place {
    std::size_t at = 0;
    int line = 1;
  };

  /// `line`: the only one that words and notes of this text have, that of `source` in the script that reads it.
  ShellReader(std::string_view text, const std::string& file, std::optional<int> line = {});

  std::string_view text() const { return text_; }
  const std::string& file() const { return file_; }
  int line() const { return line_.value_or(now_.line); }
  Place place() const { return now_; }
  void go_to(const Place& place) { now_ = place; }
  bool at_end();
  UsageError error(const std::string& why) const { return {{file_, now_.line}, {}, why}; }

  std::string_view peek_word();  ///< the next word or bracket without its meaning; "" at the end of a command
  std::string_view take_word();
  std::string_view take_operator();  ///< && || | & ; or a newline; "" if none stands there
  void skip_separators();            ///< newlines and semicolons
  void skip_redirections();
  /// The text of the here-document that begins at the next newline, as a raw word; nullopt: there is none.
  std::optional<Raw> coming_document() const;
  /// The last <<< word that was passed over since this was asked.
  std::optional<Raw> take_here_string() { return std::exchange(here_string_, std::nullopt); }
  bool at_function();
  std::string take_function_name();
  std::string take_arithmetic();                   ///< of (( .. ))
  std::vector<Raw> take_patterns();                ///< of a case: a|b)
  std::optional<Raw> next_raw(bool test = false);  ///< nullopt: the command ends here; test: within [[ ]]
  /// The words of NAME=( .. ) where one follows.
  std::optional<std::vector<Raw>> array_after(const Raw& name, std::size_t equals);

 private:
  char at(std::size_t ahead = 0) const { return now_.at + ahead < text_.size() ? text_[now_.at + ahead] : '\0'; }
  void advance(std::size_t n = 1);
  void skip_blanks();
  void take_quoted(std::string& out);
  void take_balanced(std::string& out, char open, char close);
  bool redirection();

  std::string_view text_;
  std::string file_;
  std::optional<int> line_;
  Place now_;
  struct HereDocument {
    std::string delimiter;
    bool expands;  ///< the delimiter is not quoted
  };
  std::vector<HereDocument> here_documents_;  ///< those that begin at the next newline
  std::optional<Raw> here_string_;
};

/// Appends the words that `raw` becomes.
void expand(const Raw& raw, ShellState& state, const ShellReader& reader, std::vector<ShellWord>& out);
/// The same as one word, as on the right of an assignment.
ShellWord joined(const Raw& raw, ShellState& state, const ShellReader& reader);
/// Of an expression whose $ are expanded; may assign to variables. nullopt: it depends on what is not known, or is no
/// integer expression.
std::optional<std::int64_t> arithmetic(std::string_view expression, ShellState& state);
/// NAME=value, an array's first element where NAME is one.
void assign_scalar(ShellState& state, const std::string& name, ShellWord value);
/// Neither variable nor array any more.
void forget(ShellState& state, const std::string& name);
/// Does a part of it depend on what is not known?
inline bool is_open(std::string_view text) { return text.find("${") != std::string_view::npos; }
/// Where the "=" of NAME=..., NAME+=... or NAME[KEY]=... stands; npos: the word is no assignment.
std::size_t assignment(std::string_view word);
/// Words of a line as a shell splits them; an open quote ends with the line.
std::vector<std::string> split_words(std::string_view line);

}  // namespace pipewright::emit
