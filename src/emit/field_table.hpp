// The flags of Megatron-LM as data: which scenario field a flag sets, and which versions have it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/emit.hpp"
#include "pipewright/scenario/types.hpp"

namespace pipewright::emit {

using scenario::Scenario;

enum class Kind : std::uint8_t {
  on,       ///< naming the flag sets the field true
  off,      ///< naming the flag sets the field false
  value,    ///< one word
  list,     ///< one or more words
  python,   ///< integers: "4", "1,2", or a Python list expression "([0]*3+[1]*58)"
  special,  ///< with a value: sets several fields or one in another sense (import_megatron.cpp, megatron.cpp)
  mark,     ///< as special, without a value
};

struct Flag {
  std::string_view name, field;
  Kind kind;
  scenario::Versions versions;
  std::string_view parser_default;  ///< as a scenario writes it; empty: none, or filled in later
};

inline bool is_special(const Flag& flag) { return flag.kind == Kind::special || flag.kind == Kind::mark; }

std::span<const Flag> flags();
const Flag* find_flag(std::string_view name);
/// What Bridge's CommOverlapConfig hands to cfg.ddp and cfg.optimizer with the distributed optimizer only.
bool of_distributed_optimizer(std::string_view field);
/// The flag that sets `field` in this version, or null. Of two spellings the one that begins with --no-.
const Flag* flag_of_field(std::string_view field, const scenario::Software& software);
/// Whether a version's graphs have scopes (--cuda-graph-scope), the whole iteration among them, instead of modules.
bool graphs_have_scopes(const scenario::Software& software);
bool has(scenario::Versions versions, const scenario::Software& software);
inline bool has(const Flag& flag, const scenario::Software& software) { return has(flag.versions, software); }
std::string versions_text(scenario::Versions versions);
std::string newest_of(scenario::Versions versions);  ///< the newest release among them, or else the first
/// The parser's default in this version.
std::string default_of(const Flag& flag, const scenario::Software& software);
inline std::string versions_text(const Flag& flag) { return versions_text(flag.versions); }

/// A flag that sets no field of the scenario: what it does stands in scenario::effects().
struct OtherFlag {
  std::string_view name;
  scenario::Versions versions;
  std::string_view takes =
      {};  ///< by the parser: nothing, "str", "int", "float", "a|b"; several with "*"; "?": at most one
};
std::span<const OtherFlag> other_flags();
const OtherFlag* find_other_flag(std::string_view name);
std::vector<std::string> all_flag_names();

/// Flags on which no time or memory hangs, but which model trains: kept among scenario.model.other and printed again.
struct Carried {
  std::string_view flag, field;  ///< flag empty: only Megatron Bridge can say it
};
std::span<const Carried> carried();
const Carried* carried_of_flag(std::string_view name);

/// A field of a scenario or one that is carried through it.
bool is_field(const std::string& name);

/// Flags that many documents name and no version has, with what does exist.
struct Legend {
  std::string_view name, instead;
};
std::span<const Legend> legends();
/// A flag of releases before 0.16 that moved neither time nor memory, or said what is the only way since.
bool is_gone(std::string_view flag);

/// Fields of pipewright's own, which neither Megatron's flags nor Bridge's cfg.model have.
bool is_ours(std::string_view field);

/// Does the parser's default for this field matter in this scenario? (Ranks of MLA in a model without it do not.)
bool matters(std::string_view field, const Scenario& scenario);

/// Values of two scenarios that Megatron cannot tell apart: one stated, the other the same by default.
bool same_value(const Scenario& a, const Scenario& b, const std::string& field);

/// "Parallelism", "Recompute", ...: the heading under which a field of the scenario is printed.
std::vector<std::pair<std::string, std::vector<std::string>>> fields_by_title();

// ---- Words and values

std::vector<std::string> split_shell(std::string_view text);
std::vector<std::string> items_of(const std::string& yaml_list);    ///< "[a, b]" or "a" -> a, b
std::string python_text(const std::vector<std::string>& integers);  ///< {"0","0","1"} -> "([0]*2+[1]*1)"
std::vector<std::string> python_values(std::string_view text, const std::string& flag, const Position& where);

}  // namespace pipewright::emit
