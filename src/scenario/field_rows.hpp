// The table of fields: one row a key of the scenario file. Reading, writing, --set, defaults, `list settings` and
// suggestions all go through it, so that they cannot disagree.
#pragma once

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "pipewright/scenario/types.hpp"
#include "pipewright/scenario/yaml_value.hpp"

namespace pipewright::scenario {

using OptBool = std::optional<bool>;
using OptDouble = std::optional<double>;
using OptString = std::optional<std::string>;
using OptBytes = std::optional<Bytes>;
using Doubles = std::vector<double>;

/// The member that a row stands for.
using Member = std::variant<Int*, OptInt*, bool*, OptBool*, double*, OptDouble*, std::string*, OptString*, Strings*,
                            Ints*, Doubles*, OptBytes*>;

struct Field {
  const char* section;
  const char* name;  ///< "a.b" for key b of the map a
  Member (*member)(Scenario&);
  std::string doc;
  Strings allowed = {};           ///< of a string or of a list's elements; empty: any
  double low = 0, high = 0x1p62;  ///< of a number
  bool scalar_too = false;        ///< a list that may be written as its only element

  Field& in(Strings values) { return allowed = std::move(values), *this; }
  Field& between(double least, double most) { return low = least, high = most, *this; }
  Field& from(double least) { return low = least, *this; }
  Field& or_scalar() { return scalar_too = true, *this; }
};

const std::vector<Field>& table();
const Field* find(const std::string& section, const std::string& name);  ///< nullptr: no such row
/// The row of a bare name: the first section in the order settings, model, cluster, software, search that has it.
const Field* find(const std::string& name);
Strings names_of(const std::string& section);

/// Puts a value of the input into the scenario. `where`, `key`: for the error.
void assign(const Field& field, Scenario& scenario, const Value& value, const Position& where, const std::string& key);
/// A lone value for a list field becomes a list of one: --set recompute_modules=mlp.
Value fitted(const Field& field, Value value);
std::string text(const Field& field, const Scenario& scenario);  ///< as YAML
bool same(const Field& field, const Scenario& a, const Scenario& b);
std::string type_name(const Field& field);

/// Keys that every scenario file states.
inline constexpr std::pair<const char*, const char*> required_fields[] = {
    {"model", "num_layers"},           {"model", "hidden_size"}, {"model", "num_attention_heads"},
    {"model", "seq_length"},           {"model", "vocab_size"},  {"settings", "micro_batch_size"},
    {"settings", "global_batch_size"}, {"cluster", "num_gpus"}};

/// An empty scenario with the defaults of this version.
Scenario defaults(const Software& software);

/// A field of Megatron Core's configuration classes and the versions that have it.
struct KnownField {
  enum class Type : unsigned char { integer, number, boolean, any };
  const char* name;
  Type type;
  Versions versions;
};
const std::vector<KnownField>& known_fields();
const KnownField* known_field(const std::string& name);

/// Puts a field that pipewright does not use into `other`, with the check that its type allows.
void assign_other(const KnownField& field, std::map<std::string, std::string>& other, const Value& value,
                  const Position& where, const std::string& key);

// Parts of the table.
std::vector<Field> model_fields();
std::vector<Field> setting_fields();
std::vector<Field> machine_fields();  ///< cluster, software, search

void check_software(const Software& software, const std::function<Position(const std::string&)>& where);

}  // namespace pipewright::scenario

/// One row: PIPEWRIGHT_FIELD(settings, bf16, "...").
#define PIPEWRIGHT_FIELD(section, name, doc)                                     \
  Field {                                                                        \
#section, #name, [](Scenario & s) -> Member { return &s.section.name; }, doc \
  }
