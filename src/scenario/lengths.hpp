// What sequence_lengths may hold.
#pragma once

#include <map>

#include "pipewright/scenario/types.hpp"

namespace pipewright::scenario {

/// Entries as they were written, files replaced by what they say: "512*40" (40 sequences of 512 tokens), "512+1024*3"
/// (three ready rows). Throws UsageError naming file and line.
Strings read_lengths(const Strings& written, const Position& where, const std::string& key);

/// The same as rows and how many there are of each; a row of one sequence is yet to be packed with others.
std::map<Ints, Int> length_counts(const Strings& read);

}  // namespace pipewright::scenario
