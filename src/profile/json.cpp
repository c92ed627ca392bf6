// A profile as JSON (src/profile/FORMAT.md): strict in what it reads, one sample a line in what it writes, so that two
// profiles can be compared with a plain diff. Same profile, same bytes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "pipewright/profile.hpp"

namespace pipewright::profile {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t largest_integer = std::int64_t{1} << 53;  // what every JSON reader keeps exact

/// A value and the way to it, for messages: families.gemm.bf16.tn.samples[3].time_us
struct Field {
  const Json& value;
  std::string path;
  const std::string& file;

  [[noreturn]] void fail(const std::string& message, std::vector<std::string> allowed = {},
                         std::string nearest = {}) const {
    throw UsageError({file, 0}, path, message, std::move(allowed), std::move(nearest));
  }
  Field operator[](const std::string& key) const {
    const std::string below = path.empty() ? key : path + "." + key;
    const auto found = object().find(key);
    if (found == value.end()) throw UsageError({file, 0}, below, "is missing");
    return {*found, below, file};
  }
  Field operator[](std::size_t index) const { return {value[index], fmt::format("{}[{}]", path, index), file}; }
  bool has(const std::string& key) const { return object().contains(key); }
  const Json& object() const {
    if (!value.is_object()) fail("must be an object");
    return value;
  }
  std::size_t size() const {
    if (!value.is_array()) fail("must be a list");
    return value.size();
  }
  /// Refuses keys that are not in `known`.
  void keys(const std::vector<std::string>& known) const {
    for (const auto& [key, ignored] : object().items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        Field{value, path.empty() ? key : path + "." + key, file}.fail("unknown key", known, nearest_name(key, known));
      }
    }
  }
  std::string string() const {
    if (!value.is_string()) fail("must be a string");
    return value.get<std::string>();
  }
  double number(double low, double high) const {
    if (!value.is_number()) fail("must be a number");
    const double v = value.get<double>();
    if (!std::isfinite(v) || v < low || v > high) fail(fmt::format("must be between {} and {}", low, high));
    return v;
  }
  std::int64_t integer(std::int64_t low) const {
    if (!value.is_number_integer()) fail("must be an integer");
    const bool too_large = value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{largest_integer};
    if (too_large || value.get<std::int64_t>() < low || value.get<std::int64_t>() > largest_integer) {
      fail(fmt::format("must be between {} and {}", low, largest_integer));
    }
    return value.get<std::int64_t>();
  }
  Origin origin(Origin otherwise) const {
    if (!has("origin")) return otherwise;
    const Field field = (*this)["origin"];
    const std::string text = field.string();
    std::vector<std::string> known;
    for (const Origin o : {Origin::measured, Origin::interpolated, Origin::published, Origin::derived}) {
      if (text == name(o)) return o;
      known.emplace_back(name(o));
    }
    field.fail(fmt::format("\"{}\" is no origin", text), known, nearest_name(text, known));
  }
  std::string source() const { return has("source") ? (*this)["source"].string() : std::string(); }
};

constexpr double no_limit = 1e18;

std::vector<std::string> sample_keys(const Family& f) {
  std::vector<std::string> keys = f.dims;
  keys.insert(keys.end(), {"time_us", "spread", "count", "origin", "source"});
  return keys;
}

std::vector<Sample> read_samples(const Field& list, const Family& f, Origin origin) {
  const auto known = sample_keys(f);
  std::vector<Sample> samples;
  samples.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Field entry = list[i];
    entry.keys(known);
    Sample sample;
    for (const auto& dim : f.dims) sample.dims.push_back(entry[dim].integer(1));
    sample.ns = us_to_ns(entry["time_us"].number(1e-3, 1e12));
    sample.spread = entry["spread"].number(0, 1e6);
    sample.count = static_cast<int>(std::min<std::int64_t>(entry["count"].integer(1), 1'000'000'000));
    sample.origin = entry.origin(origin);
    sample.source = entry.source();
    samples.push_back(std::move(sample));
  }
  std::sort(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) { return a.dims < b.dims; });
  const auto twice = std::adjacent_find(samples.begin(), samples.end(),
                                        [](const Sample& a, const Sample& b) { return a.dims == b.dims; });
  if (twice != samples.end()) list.fail(fmt::format("the shape {} stands twice", fmt::join(twice->dims, " x ")));
  return samples;
}

Clocks read_clocks(const Field& entry) {
  entry.keys(
      {"precision", "kernels", "cool_mhz", "limit_watts", "matrix_share", "attention_share", "memory_share", "rows"});
  Clocks clocks;
  clocks.precision = entry["precision"].string();
  if (entry.has("kernels")) clocks.kernels = entry["kernels"].string();
  if (entry.has("matrix_share")) {
    clocks.matrix_share = entry["matrix_share"].number(0, 1);
    clocks.attention_share = entry["attention_share"].number(0, 1);
    clocks.memory_share = entry["memory_share"].number(0, 1);
  }
  clocks.cool_mhz = entry["cool_mhz"].number(1, 1e5);
  clocks.limit_watts = entry["limit_watts"].number(0, 1e5);
  const Field rows = entry["rows"];
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Field row = rows[i];
    row.keys({"duty", "mhz", "watts", "matrix", "attention", "memory"});
    clocks.rows.push_back({row["duty"].number(0, 1), row["mhz"].number(1, 1e5), row["watts"].number(0, 1e5),
                           row["matrix"].number(0.1, 100), row["attention"].number(0.1, 100),
                           row["memory"].number(0.1, 100)});
  }
  std::sort(clocks.rows.begin(), clocks.rows.end(),
            [](const ClockRow& a, const ClockRow& b) { return a.duty < b.duty; });
  return clocks;
}

Link read_link(const Field& entry, Origin origin) {
  entry.keys({"name", "latency_us", "gbytes_per_s", "eager_bytes", "gpus_per_port", "origin", "source"});
  Link link;
  link.name = entry["name"].string();
  link.latency_us = entry["latency_us"].number(0, 1e6);
  link.gbytes_per_s = entry["gbytes_per_s"].number(1e-6, 1e6);
  if (entry.has("eager_bytes")) link.eager_bytes = entry["eager_bytes"].integer(0);
  if (entry.has("gpus_per_port")) link.gpus_per_port = entry["gpus_per_port"].integer(1);
  link.origin = entry.origin(origin);
  link.source = entry.source();
  return link;
}

int read_capability(const Field& field) {
  const std::string text = field.string();
  const auto dot = text.find('.');
  const auto digits = [](std::string_view part) {
    return !part.empty() && part.size() < 3 && part.find_first_not_of("0123456789") == std::string_view::npos;
  };
  const std::string_view whole = text;
  if (dot == std::string::npos || !digits(whole.substr(0, dot)) || !digits(whole.substr(dot + 1)) ||
      text.size() != dot + 2)
    field.fail("must be a compute capability such as \"9.0\"");
  return 10 * std::stoi(text.substr(0, dot)) + (text.back() - '0');
}

Layout read_layout(const Field& field) {
  const std::string text = field.string();
  std::vector<std::string> known;
  for (const Layout each : {Layout::tn, Layout::nn, Layout::nt}) {
    if (text == name(each)) return each;
    known.emplace_back(name(each));
  }
  field.fail(fmt::format("\"{}\" is no layout", text), known, nearest_name(text, known));
}

/// What the file says; in files from before they said it, the data sheet of a GPU of this name.
Device read_device(const Field& root) {
  const std::string name = root["device"].string();
  if (!root.has("gpu")) return device_named(name);
  const Field gpu = root["gpu"];
  gpu.keys({"multiprocessors", "threads_per_multiprocessor", "compute_capability", "l2_bytes", "fp8_layouts",
            "te_workspace_bytes", "torch_workspace_bytes"});
  Device d = device(name, gpu["multiprocessors"].integer(1), gpu["threads_per_multiprocessor"].integer(32),
                    read_capability(gpu["compute_capability"]), Bytes(gpu["l2_bytes"].integer(0)));
  if (gpu.has("fp8_layouts")) {
    const Field layouts = gpu["fp8_layouts"];
    d.fp8_layouts.clear();
    for (std::size_t i = 0; i < layouts.size(); ++i) d.fp8_layouts.push_back(read_layout(layouts[i]));
  }
  if (gpu.has("te_workspace_bytes")) d.te_workspace = Bytes(gpu["te_workspace_bytes"].integer(0));
  if (gpu.has("torch_workspace_bytes")) d.torch_workspace = Bytes(gpu["torch_workspace_bytes"].integer(0));
  return d;
}

Profile read(const Field& root) {
  root.keys({"profile", "name", "device", "gpu", "origin", "memory_bytes", "versions", "provenance", "links", "clocks",
             "scalars", "families"});
  if (root["profile"].integer(0) != 1) root["profile"].fail("unknown format version", {"1"});
  Profile p;
  p.name = root["name"].string();
  p.device = read_device(root);
  p.origin = root.origin(Origin::measured);
  p.memory = Bytes(root["memory_bytes"].integer(0));
  if (root.has("versions")) {
    const Field versions = root["versions"];
    for (const auto& [key, ignored] : versions.object().items()) p.versions[key] = versions[key].string();
  }
  if (root.has("provenance")) {
    const Field provenance = root["provenance"];
    for (std::size_t i = 0; i < provenance.size(); ++i) p.provenance.push_back(provenance[i].string());
  }
  if (root.has("links")) {
    const Field links = root["links"];
    for (std::size_t i = 0; i < links.size(); ++i) p.links.push_back(read_link(links[i], p.origin));
  }
  if (root.has("clocks")) {
    const Field clocks = root["clocks"];
    for (std::size_t i = 0; i < clocks.size(); ++i) p.clocks.push_back(read_clocks(clocks[i]));
  }
  if (root.has("scalars")) {
    const Field scalars = root["scalars"];
    for (const auto& [key, ignored] : scalars.object().items()) {
      const Field entry = scalars[key];
      entry.keys({"value", "spread", "origin", "source"});
      p.scalars[key] = {entry["value"].number(-no_limit, no_limit), entry["spread"].number(0, 1e6),
                        entry.origin(p.origin), entry.source()};
    }
  }
  const Field families_field = root["families"];
  for (const auto& [key, ignored] : families_field.object().items()) {
    const Field entry = families_field[key];
    const Family* f = find_family(key);
    if (f == nullptr) {
      std::vector<std::string> known;
      for (const auto& each : families()) known.push_back(each.name);
      entry.fail("unknown kernel family", {}, nearest_name(key, known));
    }
    entry.keys({"interpolation", "samples"});
    if (entry.has("interpolation")) {
      const Field how = entry["interpolation"];  // a record of another version may hold more
      Interpolation& kept = p.interpolation[key];
      kept.error = how["error"].number(0, 1e6);
      kept.tests = static_cast<int>(std::min<std::int64_t>(how["tests"].integer(0), 1'000'000));
    }
    p.samples[key] = read_samples(entry["samples"], *f, p.origin);
  }
  p.prepare();
  return p;
}

// --- writing

std::string quoted(const std::string& text) { return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace); }

/// Rounded to `digits` after the point, without trailing zeros: what a person would type.
std::string fixed(double value, int digits) {
  std::string text = fmt::format("{:.{}f}", value, digits);
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text == "-0" ? "0" : text;
}

std::string number(double value) { return fmt::format("{:.15g}", value); }

std::string origin_and_source(Origin origin, Origin usual, const std::string& source) {
  std::string text;
  if (origin != usual) text += fmt::format(", \"origin\": \"{}\"", name(origin));
  if (!source.empty()) text += ", \"source\": " + quoted(source);
  return text;
}

/// "[" or "{", the lines indented and joined by commas, "]" or "}".
std::string block(char open, const std::vector<std::string>& lines, char close, int indent) {
  if (lines.empty()) return {open, close};
  const std::string pad(static_cast<std::size_t>(indent), ' ');
  return fmt::format("{}\n{}  {}\n{}{}", open, pad, fmt::join(lines, ",\n" + pad + "  "), pad, close);
}

std::string sample_text(const Sample& sample, const Family& f, Origin usual) {
  std::string text = "{";
  for (std::size_t i = 0; i < f.dims.size(); ++i) text += fmt::format("\"{}\": {}, ", f.dims[i], sample.dims.at(i));
  return text + fmt::format("\"time_us\": {}, \"spread\": {}, \"count\": {}{}}}", fixed(ns_to_us(sample.ns), 4),
                            fixed(sample.spread, 5), sample.count,
                            origin_and_source(sample.origin, usual, sample.source));
}

}  // namespace

Profile parse(const std::string& json, const std::string& file) {
  Json document;
  try {
    document = Json::parse(json);
    return read({document, "", file});
  } catch (const Json::parse_error& error) {
    const auto end = json.begin() + static_cast<std::ptrdiff_t>(std::min(error.byte, json.size()));
    const int line = 1 + static_cast<int>(std::count(json.begin(), end, '\n'));
    throw UsageError({file, line}, {}, "is not JSON");
  } catch (const Json::exception& error) {  // a number that no double holds
    throw UsageError({file, 0}, {}, fmt::format("cannot be read: {}", error.what()));
  }
}

namespace {

/// A line of its own, or nothing where the GPU is not known.
std::string device_text(const Device& d) {
  if (!d.known()) return "";
  std::vector<std::string> layouts;
  for (const Layout each : d.fp8_layouts) layouts.push_back(fmt::format("\"{}\"", name(each)));
  return fmt::format(
      "  \"gpu\": {{\"multiprocessors\": {}, \"threads_per_multiprocessor\": {}, \"compute_capability\": \"{}\", "
      "\"l2_bytes\": {}, \"fp8_layouts\": [{}], \"te_workspace_bytes\": {}, \"torch_workspace_bytes\": {}}},\n",
      d.multiprocessors, d.threads_per_multiprocessor, capability_text(d.compute_capability), d.l2.value,
      fmt::join(layouts, ", "), d.te_workspace.value, d.torch_workspace.value);
}

}  // namespace

std::string to_json(const Profile& p) {
  std::vector<std::string> versions, provenance, links, clocks, scalars, families_text;
  for (const auto& [key, value] : p.versions) versions.push_back(quoted(key) + ": " + quoted(value));
  for (const auto& line : p.provenance) provenance.push_back(quoted(line));
  for (const auto& l : p.links) {
    links.push_back(fmt::format("{{\"name\": {}, \"latency_us\": {}, \"gbytes_per_s\": {}, \"eager_bytes\": {}{}{}}}",
                                quoted(l.name), fixed(l.latency_us, 4), fixed(l.gbytes_per_s, 4), l.eager_bytes,
                                l.gpus_per_port == 1 ? "" : fmt::format(", \"gpus_per_port\": {}", l.gpus_per_port),
                                origin_and_source(l.origin, p.origin, l.source)));
  }
  for (const auto& c : p.clocks) {
    std::vector<std::string> rows;
    for (const auto& r : c.rows) {
      rows.push_back(
          fmt::format("{{\"duty\": {}, \"mhz\": {}, \"watts\": {}, \"matrix\": {}, \"attention\": {}, \"memory\": {}}}",
                      fixed(r.duty, 4), fixed(r.mhz, 1), fixed(r.watts, 1), fixed(r.matrix, 4), fixed(r.attention, 4),
                      fixed(r.memory, 4)));
    }
    clocks.push_back(fmt::format(
        "{{\"precision\": {}, \"kernels\": {}, \"cool_mhz\": {}, \"limit_watts\": {}, \"matrix_share\": {}, "
        "\"attention_share\": {}, \"memory_share\": {}, \"rows\": {}}}",
        quoted(c.precision), quoted(c.kernels), fixed(c.cool_mhz, 1), fixed(c.limit_watts, 1), fixed(c.matrix_share, 4),
        fixed(c.attention_share, 4), fixed(c.memory_share, 4), block('[', rows, ']', 4)));
  }
  for (const auto& [key, s] : p.scalars) {
    scalars.push_back(fmt::format("{}: {{\"value\": {}, \"spread\": {}{}}}", quoted(key), number(s.value),
                                  fixed(s.spread, 5), origin_and_source(s.origin, p.origin, s.source)));
  }
  for (const auto& [key, unsorted] : p.samples) {
    const Family& f = family(key);
    auto samples = unsorted;
    std::sort(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) { return a.dims < b.dims; });
    std::vector<std::string> lines;
    for (const auto& sample : samples) lines.push_back(sample_text(sample, f, p.origin));
    const Interpolation tested = leave_one_out(key, samples);
    families_text.push_back(fmt::format("{}: {{\"interpolation\": {{\"error\": {}, \"tests\": {}}}, \"samples\": {}}}",
                                        quoted(key), fixed(tested.error, 5), tested.tests, block('[', lines, ']', 4)));
  }
  return fmt::format(
      "{{\n  \"profile\": 1,\n  \"name\": {},\n  \"device\": {},\n{}  \"origin\": \"{}\",\n  \"memory_bytes\": {},\n"
      "  \"versions\": {},\n  \"provenance\": {},\n  \"links\": {},\n  \"clocks\": {},\n  \"scalars\": {},\n"
      "  \"families\": {}\n}}\n",
      quoted(p.name), quoted(p.device.name), device_text(p.device), name(p.origin), p.memory.value,
      block('{', versions, '}', 2), block('[', provenance, ']', 2), block('[', links, ']', 2),
      block('[', clocks, ']', 2), block('{', scalars, '}', 2), block('{', families_text, '}', 2));
}

}  // namespace pipewright::profile
