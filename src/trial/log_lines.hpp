// Lines of a log.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace pipewright::trial {

/// Without colours and other commands to a terminal.
std::string plain(std::string_view line);

template <class Each>
void each_line(std::string_view text, const Each& body) {
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find_first_of("\n\r", at), text.size());  // \r: bars of progress
    const auto line = text.substr(at, end - at);
    const bool commands = std::any_of(line.begin(), line.end(), [](char c) { return c > 0 && c < ' ' && c != '\t'; });
    commands ? body(plain(line)) : body(line);
    at = end + 1;
  }
}

inline bool holds(std::string_view line, std::string_view what) { return line.find(what) != std::string_view::npos; }

/// Without the blanks around it, and no longer than a person reads.
std::string shortened(std::string_view line);

}  // namespace pipewright::trial
