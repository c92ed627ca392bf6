// What a script asks before it goes on.
#pragma once

#include <vector>

#include "shell_words.hpp"

namespace pipewright::emit {

/// likely: of a program that ran, and that nobody asks anything.
enum class Truth : unsigned char { no, yes, unknown, likely };

inline Truth operator!(Truth t) { return t == Truth::yes ? Truth::no : t == Truth::no ? Truth::yes : Truth::unknown; }

/// Of [ a == b -a -n c ], [[ a == b && ! -z c ]] or test a == b: what follows the first word. What depends on the
/// machine is unknown; a match sets BASH_REMATCH. `open` becomes true where it asks for what nobody says.
Truth condition_of(const std::vector<Raw>& raws, ShellState& state, const ShellReader& reader, bool& open);

}  // namespace pipewright::emit
