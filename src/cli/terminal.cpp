// Colours by what a line is, see terminal.hpp.
#include "terminal.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace pipewright::cli {
namespace {

std::string color = "auto";

bool wants_colour(int file) {
  if (color != "auto") return color == "always";
  const char* none = std::getenv("NO_COLOR");
  if (none != nullptr && *none != '\0') return false;
  return is_capable_terminal(file);
}

constexpr const char *as_bold = "\033[1m", *as_dim = "\033[2m", *as_red = "\033[1;31m", *as_green = "\033[32m",
                     *as_title = "\033[1;36m", *as_yellow = "\033[33m", *as_plain = "\033[0m";

bool is_rule(std::string_view line) {
  return line.size() >= 3 && line.find_first_not_of('-') == std::string_view::npos;
}

const char* colour_of(const std::vector<std::string_view>& lines, std::size_t i) {
  const auto line = lines[i], next = i + 1 < lines.size() ? lines[i + 1] : std::string_view();
  const auto begins = [&](std::string_view with) { return line.starts_with(with); };
  if (line.empty()) return nullptr;
  if (is_rule(line)) return as_dim;
  if (is_rule(next)) return as_bold;
  if (begins("fits")) return as_green;
  if (begins("does not fit") || begins("nothing fits") || line.find("(violation") != std::string_view::npos)
    return as_red;
  if (line.find("(trap") != std::string_view::npos) return as_yellow;
  if (begins("best: ") || begins("step ")) return as_bold;
  const bool first_of_a_part = i == 0 || lines[i - 1].empty();
  const bool over_a_list =
      next.starts_with("- ") || next.starts_with("  ") || (i + 2 < lines.size() && is_rule(lines[i + 2]));
  if (first_of_a_part && i > 0 && over_a_list && line.front() != '-' && line.front() != ' ') return as_title;
  return nullptr;
}

}  // namespace

void add_color_option(Command& command) {
  for (Command& below : command.commands()) add_color_option(below);
  if (command.commands().empty())
    command.add_option("--color", color, "auto (on a terminal, without NO_COLOR), always or never")
        .allowed({"auto", "always", "never"});
}

bool is_capable_terminal(int file) {
  const char* terminal = std::getenv("TERM");
  return isatty(file) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

int columns_of(int file) {
  if (isatty(file) != 1) return 0;
  winsize size{};
  const char* stated = std::getenv("COLUMNS");
  const int columns = stated != nullptr ? std::atoi(stated) : 0;
  if (columns > 0) return columns;
  return ioctl(file, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

int terminal_width() {
  const int columns = columns_of(STDOUT_FILENO);
  constexpr int narrowest = 40, widest = 200;  // longer lines of prose are hard to read
  return columns <= 0 ? 0 : std::clamp(columns, narrowest, widest);
}

std::string dressed(std::string_view text) {
  if (!wants_colour(STDOUT_FILENO)) return std::string(text);
  std::vector<std::string_view> lines;
  for (std::size_t from = 0; from <= text.size();) {
    const auto to = std::min(text.find('\n', from), text.size());
    lines.push_back(text.substr(from, to - from));
    from = to + 1;
  }
  std::string out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const char* colour = colour_of(lines, i);
    if (colour != nullptr) out += colour;
    out += lines[i];
    if (colour != nullptr) out += as_plain;
    if (i + 1 < lines.size()) out += '\n';
  }
  return out;
}

std::string dressed_message(std::string_view text, bool bad) {
  if (!wants_colour(STDERR_FILENO)) return std::string(text);
  const auto head = bad ? text.find(':') : std::string_view::npos;
  if (head == std::string_view::npos) return as_dim + std::string(text) + as_plain;
  return as_red + std::string(text.substr(0, head + 1)) + as_plain + std::string(text.substr(head + 1));
}

}  // namespace pipewright::cli
