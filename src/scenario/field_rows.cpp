// What a row of the table can do: take a value, give it back as YAML, name its type and default.
#include "field_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>
#include <unordered_map>

#include "lengths.hpp"
#include "pipewright/scenario/fields.hpp"

namespace pipewright::scenario {
namespace {

template <class T>
struct Plain {
  using type = T;
  static constexpr bool optional = false, list = false;
};
template <class T>
struct Plain<std::optional<T>> {
  using type = T;
  static constexpr bool optional = true, list = false;
};
template <class T>
struct Plain<std::vector<T>> {
  using type = T;
  static constexpr bool optional = false, list = true;
};
template <class M>
using PlainOf = Plain<std::remove_pointer_t<M>>;

template <class T>
constexpr const char* scalar_name() {
  if constexpr (std::is_same_v<T, Int>) return "int";
  if constexpr (std::is_same_v<T, bool>) return "bool";
  if constexpr (std::is_same_v<T, double>) return "float";
  if constexpr (std::is_same_v<T, Bytes>) return "bytes";
  return "string";
}

std::string limit_text(double limit) {
  return limit == 0x1p62 ? "2^62" : limit == 0x1p30 ? "2^30" : fmt::format("{}", limit);
}

template <class T>
T in_range(T number, const Field& field, const Value& value, const Position& where, const std::string& key) {
  if (static_cast<double>(number) >= field.low && static_cast<double>(number) <= field.high) return number;
  throw UsageError(where, key, fmt::format("{} is out of range", describe(value)),
                   {fmt::format("{} to {}", limit_text(field.low), limit_text(field.high))});
}

// One scalar of type T, checked against the row's range or allowed values.
template <class T>
T scalar(const Field& field, const Value& value, const Position& where, const std::string& key) {
  const auto expected = [&](const char* what) {
    return UsageError(where, key, fmt::format("expected {}, found {}", what, describe(value)), field.allowed);
  };
  if constexpr (std::is_same_v<T, Int>) {
    if (const auto number = as_int(value)) return in_range(*number, field, value, where, key);
    // Digits that do not fit 64 bits are an integer, too, only too large a one.
    const std::size_t sign = value.text.starts_with('-') ? 1 : 0;
    const bool digits = value.kind == Value::Kind::scalar && !value.quoted && value.text.size() > 1 &&
                        value.text[sign] != '0' &&
                        value.text.find_first_not_of("0123456789", sign) == std::string::npos;
    if (digits)
      throw UsageError(where, key, fmt::format("{} is out of range", describe(value)),
                       {fmt::format("{} to {}", limit_text(field.low), limit_text(field.high))});
    throw expected("an integer");
  } else if constexpr (std::is_same_v<T, bool>) {
    if (const auto truth = as_bool(value)) return *truth;
    throw expected("true or false");
  } else if constexpr (std::is_same_v<T, double>) {
    if (const auto number = as_double(value)) return in_range(*number, field, value, where, key);
    throw expected("a number");
  } else if constexpr (std::is_same_v<T, Bytes>) {
    if (value.kind != Value::Kind::scalar) throw expected("a size such as 80530636800, 80GB or 74GiB");
    const Bytes bytes = parse_bytes(value.text, where, key);
    in_range(bytes.value, field, value, where, key);
    return bytes;
  } else {
    if (value.kind != Value::Kind::scalar) throw expected("a string");
    if (!field.allowed.empty() &&
        std::find(field.allowed.begin(), field.allowed.end(), value.text) == field.allowed.end()) {
      throw UsageError(where, key, fmt::format("unknown value, found {}", describe(value)), field.allowed,
                       nearest_name(value.text, field.allowed));
    }
    if (value.text.empty()) throw expected("a string");
    return value.text;
  }
}

// Megatron's command line writes patterns as a Python expression: "([0]*3+[1]*58)". Only lists, * and + are known.
std::optional<Ints> pattern(std::string text) {
  std::erase(text, ' ');
  if (text.starts_with('(') && text.ends_with(')')) text = text.substr(1, text.size() - 2);
  constexpr std::size_t longest = 1'000'000;
  Ints all;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] != '[') return {};
    const std::size_t close = text.find(']', at);
    if (close == std::string::npos) return {};
    Ints part;
    for (std::size_t from = at + 1; from <= close;) {
      const std::size_t to = std::min(text.find(',', from), close);
      Value element;
      element.kind = Value::Kind::scalar;
      element.text = text.substr(from, to - from);
      const auto number = as_int(element);
      if (!number) return {};
      part.push_back(*number);
      from = to + 1;
    }
    at = close + 1;
    std::int64_t times = 1;
    if (at < text.size() && text[at] == '*') {
      const std::size_t plus = std::min(text.find('+', at), text.size());
      Value count;
      count.kind = Value::Kind::scalar;
      count.text = text.substr(at + 1, plus - at - 1);
      const auto number = as_int(count);
      if (!number || *number < 0 || *number > static_cast<std::int64_t>(longest)) return {};
      times = *number;
      at = plus;
    }
    if (all.size() + part.size() * static_cast<std::size_t>(times) > longest) return {};
    for (std::int64_t i = 0; i < times; ++i) all.insert(all.end(), part.begin(), part.end());
    if (at < text.size() && text[at++] != '+') return {};
  }
  return all;
}

template <class T>
std::vector<T> list(const Field& field, const Value& value, const Position& where, const std::string& key) {
  std::vector<T> all;
  if (value.kind == Value::Kind::scalar) {
    if (is_none(value)) return all;
    if constexpr (std::is_same_v<T, Int>) {
      if (value.text.find('[') != std::string::npos) {
        if (const auto found = pattern(value.text)) {
          for (const Int element : *found) in_range(element, field, value, where, key);
          return *found;
        }
      }
    }
    if (!field.scalar_too) {
      throw UsageError(where, key, fmt::format("expected a list, found {}", describe(value)), field.allowed);
    }
    all.push_back(scalar<T>(field, value, where, key));
    return all;
  }
  if (value.kind == Value::Kind::map) throw UsageError(where, key, "expected a list, found a map", field.allowed);
  for (const Value& item : value.items) {
    all.push_back(scalar<T>(field, item, {where.file, item.line > 0 && where.line > 0 ? item.line : where.line}, key));
  }
  return all;
}

template <class T>
std::string scalar_text(const T& value) {
  if constexpr (std::is_same_v<T, Int>) return fmt::format("{}", value);
  if constexpr (std::is_same_v<T, bool>) return value ? "true" : "false";
  if constexpr (std::is_same_v<T, double>) return yaml_number(value);
  if constexpr (std::is_same_v<T, Bytes>) return fmt::format("{}", value.value);
  if constexpr (std::is_same_v<T, std::string>) return yaml_scalar(value);
}

}  // namespace

const std::vector<Field>& table() {
  static const std::vector<Field> rows = [] {
    std::vector<Field> all = model_fields();
    for (auto* part : {setting_fields, machine_fields}) {
      for (Field& field : part()) all.push_back(std::move(field));
    }
    return all;
  }();
  return rows;
}

const Field* find(const std::string& section, const std::string& name) {
  static const std::unordered_map<std::string, const Field*> index = [] {
    std::unordered_map<std::string, const Field*> all;
    for (const Field& field : table()) all.emplace(std::string(field.section) + "." + field.name, &field);
    return all;
  }();
  const auto found = index.find(section + "." + name);
  return found == index.end() ? nullptr : found->second;
}

const Field* find(const std::string& name) {
  for (const char* section : {"settings", "model", "cluster", "software", "search"}) {
    if (const Field* field = find(section, name)) return field;
  }
  return nullptr;
}

Strings names_of(const std::string& section) {
  Strings names;
  for (const Field& field : table()) {
    if (section == field.section) names.emplace_back(field.name);
  }
  return names;
}

void assign(const Field& field, Scenario& scenario, const Value& value, const Position& where, const std::string& key) {
  std::visit(
      [&](auto* member) {
        using P = PlainOf<decltype(member)>;
        if constexpr (P::list) {
          *member = list<typename P::type>(field, value, where, key);
        } else if constexpr (P::optional) {
          if (is_none(value) || (std::is_same_v<typename P::type, Bytes> && value.text == "device")) {
            member->reset();
          } else {
            *member = scalar<typename P::type>(field, value, where, key);
          }
        } else {
          *member = scalar<typename P::type>(field, value, where, key);
        }
      },
      field.member(scenario));
  if (field.name == std::string_view("cuda_graph_modules") && scenario.settings.cuda_graph_modules == Strings{"full"}) {
    scenario.settings.cuda_graph_modules.clear();  // TransformerConfig.__post_init__ does the same
  }
  if (field.name == std::string_view("sequence_lengths"))
    scenario.settings.sequence_lengths = read_lengths(scenario.settings.sequence_lengths, where, key);
}

Value fitted(const Field& field, Value value) {
  Scenario scratch;
  const bool wants_list =
      std::visit([](auto* member) { return PlainOf<decltype(member)>::list; }, field.member(scratch));
  if (!wants_list || value.kind != Value::Kind::scalar || is_none(value) || value.text.find('[') != std::string::npos) {
    return value;
  }
  Value list;
  list.kind = Value::Kind::list;
  list.line = value.line;
  list.items.push_back(std::move(value));
  return list;
}

std::string text(const Field& field, const Scenario& scenario) {
  // Members are only read here; the table's accessor is shared with assign() and so takes a mutable scenario.
  return std::visit(
      [](const auto* member) -> std::string {
        using P = PlainOf<std::remove_const_t<std::remove_pointer_t<decltype(member)>>*>;
        if constexpr (P::list) {
          std::string all;
          for (const auto& element : *member) all += (all.empty() ? "" : ", ") + scalar_text<typename P::type>(element);
          return "[" + all + "]";
        } else if constexpr (P::optional) {
          return *member ? scalar_text<typename P::type>(**member) : "none";
        } else {
          return scalar_text(*member);
        }
      },
      field.member(const_cast<Scenario&>(scenario)));
}

bool same(const Field& field, const Scenario& a, const Scenario& b) {
  const Member left = field.member(const_cast<Scenario&>(a)), right = field.member(const_cast<Scenario&>(b));
  return std::visit([&](auto* member) { return *member == *std::get<decltype(member)>(right); }, left);
}

std::string type_name(const Field& field) {
  Scenario scratch;
  return std::visit(
      [](auto* member) -> std::string {
        using P = PlainOf<decltype(member)>;
        const std::string name = scalar_name<typename P::type>();
        return P::list ? "list of " + name : P::optional ? name + " or none" : name;
      },
      field.member(scratch));
}

Scenario defaults(const Software& software) {
  Scenario scenario;
  scenario.software = software;
  Settings& s = scenario.settings;
  // The only fields of the table whose default differs between versions (TransformerConfig of each branch).
  using enum Version;
  const Version version = core_version(software);
  if (version < v0_18) s.cuda_graph_use_single_mempool = false;
  if (version < v0_19) s.moe_deepep_num_sms = 20;
  if ((up_to(v0_16) | pr_4268).has(version)) s.moe_hybridep_num_sms = 16;
  return scenario;
}

const KnownField* known_field(const std::string& name) {
  static const std::unordered_map<std::string_view, const KnownField*> index = [] {
    std::unordered_map<std::string_view, const KnownField*> all;
    for (const KnownField& field : known_fields()) all.emplace(field.name, &field);
    return all;
  }();
  const auto found = index.find(name);
  return found == index.end() ? nullptr : found->second;
}

void assign_other(const KnownField& field, std::map<std::string, std::string>& other, const Value& value,
                  const Position& where, const std::string& key) {
  const auto expect = [&](bool right, const char* what) {
    if (!right && !is_none(value))
      throw UsageError(where, key, fmt::format("expected {}, found {}", what, describe(value)));
  };
  if (field.type == KnownField::Type::integer) expect(as_int(value).has_value(), "an integer");
  if (field.type == KnownField::Type::number) expect(as_double(value).has_value(), "a number");
  if (field.type == KnownField::Type::boolean) expect(as_bool(value).has_value(), "true or false");
  other[field.name] = yaml_text(value);
}

Versions versions_of(const std::string& field) {
  if (const KnownField* known = known_field(field)) return known->versions;
  throw InternalError("no field of Megatron Core: " + field);
}

std::vector<FieldInfo> fields() {
  const Scenario empty;
  std::vector<FieldInfo> all;
  for (const Field& field : table()) {
    FieldInfo info{field.section, field.name, type_name(field), text(field, empty), field.allowed, field.doc, {}};
    if (const KnownField* known = known_field(field.name)) info.versions = known->versions;
    all.push_back(std::move(info));
  }
  return all;
}

}  // namespace pipewright::scenario
