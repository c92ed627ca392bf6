// How results look on a terminal. What goes into a pipe or a file is left as it is.
#pragma once

#include <string>
#include <string_view>

#include "options.hpp"

namespace pipewright::cli {

/// --color on every command.
void add_color_option(Command& command);

/// Columns of the terminal that this open file is ($COLUMNS, else what it says itself); 0: it is none, or does not say.
int columns_of(int file);
/// The same of standard output, as wide as prose should be.
int terminal_width();
/// Is this open file a terminal that understands escapes?
bool is_capable_terminal(int file);

/// Titles, verdicts and rules of tables in colour, where the one who reads wants it: --color always, or auto on a
/// terminal that can, without NO_COLOR (https://no-color.org).
std::string dressed(std::string_view text);
/// The same for a message on standard error; `bad`: an error.
std::string dressed_message(std::string_view text, bool bad);

}  // namespace pipewright::cli
