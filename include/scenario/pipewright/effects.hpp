// What every name that Megatron reads does to a prediction: flags of its argument parsers, fields of its configuration
// classes, environment variables. Each is of one class; nothing is dropped without a word.
//
//   modelled    a change moves predicted time or memory (src/scenario/effects/modelled.inc says which way; a generated
//               test changes each and looks)
//   none        changes neither time nor memory of a step (silent.inc: the reason)
//   legality    decides whether Megatron runs, nothing else (legality.inc: the rules)
//   refused     changes time or memory and is not modelled (missing.inc, refused.cpp: what is missing). It stops a
//               prediction unless the scenario ignores it (`ignore:`, --ignore); then there is no interval.
//
// A modelled name may have values that are refused (cp_comm_type: a2a).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/scenario/types.hpp"

namespace pipewright::scenario {

enum class Effect : std::uint8_t { modelled, none, legality, refused };
std::string_view name(Effect effect);

struct EffectRow {
  std::string name;
  Effect effect = Effect::none;
  std::string text;  ///< modelled: what moves; none: the reason; legality: rules; refused: what is missing
};

/// Sorted by name. A name with a row of another class beside it has values of that class: "cp_comm_type" is modelled,
/// "cp_comm_type=..." refused.
const std::vector<EffectRow>& effects();
/// The row of a flag (with or without dashes, --no-x as x), a field or a variable. nullptr: nobody knows the name.
const EffectRow* effect_of(std::string_view name);
/// Is the value of a refused name, of no field, one that changes nothing (rerun_mode: disabled)?
bool is_neutral(const std::string& name, const std::string& value);
/// Can this value of a name, of no field, change a prediction or whether Megatron runs, alone or beside others?
bool may_act(const std::string& name, const std::string& value);
/// A flag or a field that only sets others (aliases.inc).
inline bool sets_others(const EffectRow& row) { return row.text.starts_with("sets "); }
/// "--window-size" -> "window_size"; names of variables stay.
std::string effect_name(std::string_view flag_or_field);

/// How a modelled name is tested: in `base` with `setup`, going from one value to the other moves `quantity` up or
/// down.
struct Move {
  const char *name, *base, *setup, *from, *to, *quantity;
  bool up;
};
std::span<const Move> moves();

/// Something in use that is not modelled.
struct Unmodelled {
  std::string name, value;
  std::string key;      ///< where it was stated: "settings.deterministic_mode"
  std::string missing;  ///< what a prediction lacks
};
std::vector<Unmodelled> unmodelled(const Scenario& scenario);
/// Throws for what is in use, not modelled and not ignored.
void refuse_unmodelled(const Scenario& scenario);
/// Names in use that are not modelled and were let through: no interval holds.
Strings let_through(const Scenario& scenario);
/// Puts a name into the scenario's list. Throws for one that is not refused in any version.
void ignore(Scenario& scenario, std::string_view name, const Position& where);

/// What is told of values that do not move an ordinary step.
Strings notes_of_values(const Scenario& scenario);

/// Variables and settings in use that tune NCCL away from how the profile's collectives were measured.
Strings tunings(const Scenario& scenario);

}  // namespace pipewright::scenario
