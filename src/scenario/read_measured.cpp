#include "read_measured.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"

namespace pipewright::scenario {
namespace {

const Strings kinds = {"comp", "p2p", "ep", "coll", "d2h", "h2d"};

// Reads the entries of one map: every key has a handler, a required one must be there.
class Map {
 public:
  using Handler = std::function<void(const Value&, const Position&, const std::string&)>;
  struct Row {
    const char* key;
    bool required;
    Handler handler;
  };

  static void read(const Value& value, const std::string& file, const std::string& in, const std::vector<Row>& rows) {
    if (value.kind != Value::Kind::map) {
      throw UsageError({file, value.line}, in, "expected a map of keys and values, found " + describe(value));
    }
    Strings known;
    for (const Row& row : rows) known.emplace_back(row.key);
    for (const auto& [key, line, item] : value.entries) {
      const Row* found = nullptr;
      for (const Row& row : rows) {
        if (key == row.key) found = &row;
      }
      const std::string name = in + "." + key;
      if (found == nullptr) throw UsageError({file, line}, name, "unknown key", known, nearest_name(key, known));
      found->handler(item, {file, line}, name);
    }
    Strings absent;
    for (const Row& row : rows) {
      bool there = !row.required;
      for (const auto& e : value.entries) there = there || e.key == row.key;
      if (!there) absent.push_back(in + "." + row.key);
    }
    if (!absent.empty()) throw UsageError({file, value.line}, fmt::format("{}", fmt::join(absent, ", ")), "missing");
  }
};

/// "58.8GiB" or a whole number.
Bytes sized(const Value& value, const Position& where, const std::string& key) {
  if (value.kind != Value::Kind::scalar) throw UsageError(where, key, "expected bytes, found " + describe(value));
  return parse_bytes(value.text, where, key);
}

double positive(const Value& value, const Position& where, const std::string& key) {
  const auto number = as_double(value);
  if (!number) throw UsageError(where, key, "expected a number, found " + describe(value));
  if (*number < 0 || *number > 0x1p62)
    throw UsageError(where, key, describe(value) + " is out of range", {"0 to 2^62"});
  return *number;
}
Int whole(const Value& value, const Position& where, const std::string& key) {
  const auto number = as_int(value);
  if (!number) throw UsageError(where, key, "expected an integer, found " + describe(value));
  if (*number < 0 || *number > Int{1} << 62)
    throw UsageError(where, key, describe(value) + " is out of range", {"0 to 2^62"});
  return *number;
}

Map::Handler number_into(double& to) {
  return [&to](const Value& v, const Position& at, const std::string& key) { to = positive(v, at, key); };
}
Map::Handler number_into(std::optional<double>& to) {
  return [&to](const Value& v, const Position& at, const std::string& key) {
    if (!is_none(v)) to = positive(v, at, key);
  };
}
Map::Handler integer_into(Int& to) {
  return [&to](const Value& v, const Position& at, const std::string& key) { to = whole(v, at, key); };
}
Map::Handler bytes_into(Bytes& to) {
  return [&to](const Value& v, const Position& at, const std::string& key) { to = Bytes(whole(v, at, key)); };
}
Map::Handler bytes_into(std::optional<Bytes>& to) {
  return [&to](const Value& v, const Position& at, const std::string& key) {
    if (!is_none(v)) to = Bytes(whole(v, at, key));
  };
}
Map::Handler by_kind(std::map<std::string, double>& to) {
  return [&to](const Value& v, const Position& at, const std::string& key) {
    std::vector<Map::Row> rows;
    for (const std::string& kind : kinds) {
      rows.push_back(
          {kind.c_str(), false, [&to, kind](const Value& item, const Position& where, const std::string& name) {
             to[kind] = positive(item, where, name);
           }});
    }
    Map::read(v, at.file, key, rows);
  };
}

template <class Each>
void each(const Value& value, const Position& at, const std::string& key, const Each& body) {
  if (value.kind != Value::Kind::list) throw UsageError(at, key, "expected a list, found " + describe(value));
  for (const Value& item : value.items) body(item);
}

TraceSummary read_summary(const Value& value, const std::string& file, const std::string& in) {
  TraceSummary summary;
  Map::read(value, file, in,
            {{"span_us", true, number_into(summary.span_us)},
             {"busy_us", true, by_kind(summary.busy_us)},
             {"exposed_us", true, by_kind(summary.exposed_us)}});
  return summary;
}

MeasuredRank read_rank(const Value& value, const std::string& file, const std::string& in) {
  MeasuredRank rank;
  Map::read(value, file, in,
            {{"rank", true, integer_into(rank.rank)},
             {"pp_rank", true, integer_into(rank.pp_rank)},
             {"parameters", true, integer_into(rank.parameters)},
             {"forward_backward_ms", true, number_into(rank.forward_backward_ms)},
             {"static_bytes", true, bytes_into(rank.static_bytes)},
             {"peak_allocated_bytes", true, bytes_into(rank.peak_allocated_bytes)},
             {"after_step_bytes", true, bytes_into(rank.after_step_bytes)},
             {"peak_reserved_bytes", true, bytes_into(rank.peak_reserved_bytes)},
             {"outside_allocator_bytes", false, bytes_into(rank.outside_allocator_bytes)},
             {"sm_clock_mhz", false, number_into(rank.sm_clock_mhz)},
             {"trace_summary", false, [&](const Value& v, const Position& at, const std::string& key) {
                rank.trace_summary = read_summary(v, at.file, key);
              }}});
  return rank;
}

std::string by_kind_text(const std::map<std::string, double>& values) {
  std::string text;
  for (const auto& [kind, us] : values)
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", kind, yaml_number(us));
  return "{" + text + "}";
}

Map::Handler by_rank(std::map<Int, Bytes>& to) {
  return [&to](const Value& v, const Position& at, const std::string& key) {
    if (v.kind != Value::Kind::map) {
      throw UsageError(at, key, "expected a map of pipeline ranks and bytes, found " + describe(v));
    }
    for (const auto& [rank, line, item] : v.entries) {
      Value text;
      text.kind = Value::Kind::scalar;
      text.text = rank;
      to[whole(text, {at.file, line}, key)] = sized(item, {at.file, line}, key + "." + rank);
    }
  };
}

bool states(const Value& value, const char* key) {
  return value.kind == Value::Kind::map &&
         std::any_of(value.entries.begin(), value.entries.end(), [&](const auto& entry) { return entry.key == key; });
}

}  // namespace

Measured read_measured(const Value& value, const std::string& file) {
  Measured measured;
  const bool published = states(value, "step_ms");
  Map::read(value, file, "measured",
            {{"forward_backward_ms", !published, number_into(measured.forward_backward_ms)},
             {"step_ms", false, number_into(measured.step_ms)},
             {"source", published,
              [&](const Value& v, const Position& at, const std::string& key) {
                if (v.kind != Value::Kind::scalar || v.text.empty()) {
                  throw UsageError(at, key, "expected the place where the run is published, found " + describe(v));
                }
                measured.source = v.text;
              }},
             {"tokens_per_s_per_gpu", false, number_into(measured.tokens_per_s_per_gpu)},
             {"peak_allocated_bytes_by_rank", false, by_rank(measured.peak_allocated_bytes_by_rank)},
             {"peak_reserved_bytes_by_rank", false, by_rank(measured.peak_reserved_bytes_by_rank)},
             {"outside_allocator_bytes_by_rank", false, by_rank(measured.outside_allocator_bytes_by_rank)},
             {"samples_ms", false,
              [&](const Value& v, const Position& at, const std::string& key) {
                each(v, at, key, [&](const Value& item) {
                  measured.samples_ms.push_back(positive(item, {at.file, item.line}, key));
                });
              }},
             {"optimizer_ms", false, number_into(measured.optimizer_ms)},
             {"ranks", !published, [&](const Value& v, const Position& at, const std::string& key) {
                each(v, at, key, [&](const Value& item) { measured.ranks.push_back(read_rank(item, at.file, key)); });
              }}});
  if (published && !(*measured.step_ms > 0)) {
    throw UsageError({file, value.line}, "measured.step_ms", "a step takes more than 0 ms");
  }
  return measured;
}

std::string write_measured(const Measured& measured) {
  std::string out = "measured:\n";
  if (measured.step_ms) out += fmt::format("  step_ms: {}\n", yaml_number(*measured.step_ms));
  if (!measured.source.empty()) out += fmt::format("  source: {}\n", yaml_scalar(measured.source));
  if (measured.tokens_per_s_per_gpu)
    out += fmt::format("  tokens_per_s_per_gpu: {}\n", yaml_number(*measured.tokens_per_s_per_gpu));
  for (const auto& [key, by_rank] : {std::pair("peak_allocated", &measured.peak_allocated_bytes_by_rank),
                                     {"peak_reserved", &measured.peak_reserved_bytes_by_rank},
                                     {"outside_allocator", &measured.outside_allocator_bytes_by_rank}}) {
    if (!by_rank->empty()) out += fmt::format("  {}_bytes_by_rank:\n", key);
    for (const auto& [rank, bytes] : *by_rank) out += fmt::format("    {}: {}\n", rank, bytes.value);
  }
  if (measured.step_alone()) return out;
  out += fmt::format("  forward_backward_ms: {}\n", yaml_number(measured.forward_backward_ms));
  std::string samples;
  for (const double sample : measured.samples_ms) samples += (samples.empty() ? "" : ", ") + yaml_number(sample);
  if (!samples.empty()) out += "  samples_ms: [" + samples + "]\n";
  if (measured.optimizer_ms) out += fmt::format("  optimizer_ms: {}\n", yaml_number(*measured.optimizer_ms));
  out += measured.ranks.empty() ? "  ranks: []\n" : "  ranks:\n";
  for (const MeasuredRank& r : measured.ranks) {
    out += fmt::format("  - rank: {}\n    pp_rank: {}\n    parameters: {}\n    forward_backward_ms: {}\n", r.rank,
                       r.pp_rank, r.parameters, yaml_number(r.forward_backward_ms));
    out += fmt::format("    static_bytes: {}\n    peak_allocated_bytes: {}\n    after_step_bytes: {}\n",
                       r.static_bytes.value, r.peak_allocated_bytes.value, r.after_step_bytes.value);
    out += fmt::format("    peak_reserved_bytes: {}\n", r.peak_reserved_bytes.value);
    if (r.outside_allocator_bytes)
      out += fmt::format("    outside_allocator_bytes: {}\n", r.outside_allocator_bytes->value);
    if (r.sm_clock_mhz) out += fmt::format("    sm_clock_mhz: {}\n", yaml_number(*r.sm_clock_mhz));
    if (!r.trace_summary) continue;
    out += fmt::format("    trace_summary:\n      span_us: {}\n      busy_us: {}\n      exposed_us: {}\n",
                       yaml_number(r.trace_summary->span_us), by_kind_text(r.trace_summary->busy_us),
                       by_kind_text(r.trace_summary->exposed_us));
  }
  return out;
}

}  // namespace pipewright::scenario
