// A profile from JSON (src/profile/FORMAT.md): strict in what is read.
#include <fmt/format.h>

#include <algorithm>

#include "json_field.hpp"
#include "pipewright/profile.hpp"
#include "scalar_names.hpp"

namespace pipewright::profile {
namespace {

constexpr double no_limit = 1e18;

using Keys = std::vector<std::string>;

std::vector<Sample> read_samples(const Field& list, const Family& f, Origin origin) {
  Keys known = f.dims;
  known.insert(known.end(), {"time_us", "spread", "count", "origin", "source"});
  const std::size_t dims = f.dims.size();
  const auto fields = list.list();
  std::vector<Sample> samples;
  samples.reserve(fields.size());
  for (const Field& field : fields) {
    const Object entry(field, known);
    Sample& sample = samples.emplace_back();
    sample.dims.reserve(dims);
    for (std::size_t d = 0; d < dims; ++d) sample.dims.push_back(entry.at(d).integer(1));
    sample.ns = us_to_ns(entry.at(dims).number(1e-3, 1e12));
    sample.spread = entry.at(dims + 1).number(0, 1e6);
    sample.count = static_cast<int>(std::min<std::int64_t>(entry.at(dims + 2).integer(1), 1'000'000'000));
    sample.origin = entry.present(dims + 3) ? entry.at(dims + 3).origin() : origin;
    if (entry.present(dims + 4)) sample.source = entry.at(dims + 4).string();
  }
  const auto before = [](const Sample& a, const Sample& b) { return a.dims < b.dims; };
  if (!std::is_sorted(samples.begin(), samples.end(), before)) std::sort(samples.begin(), samples.end(), before);
  const auto twice = std::adjacent_find(samples.begin(), samples.end(),
                                        [](const Sample& a, const Sample& b) { return a.dims == b.dims; });
  if (twice != samples.end()) list.fail(fmt::format("the shape {} stands twice", fmt::join(twice->dims, " x ")));
  return samples;
}

Clocks read_clocks(const Field& field) {
  static const Keys known = {"precision",    "kernels",         "cool_mhz",     "limit_watts",
                             "matrix_share", "attention_share", "memory_share", "rows"};
  static const Keys of_row = {"duty", "mhz", "watts", "matrix", "attention", "memory"};
  const Object entry(field, known);
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
  for (const Field& each : rows.list()) {
    const Object row(each, of_row);
    clocks.rows.push_back({row["duty"].number(0, 1), row["mhz"].number(1, 1e5), row["watts"].number(0, 1e5),
                           row["matrix"].number(0.1, 100), row["attention"].number(0.1, 100),
                           row["memory"].number(0.1, 100)});
  }
  std::sort(clocks.rows.begin(), clocks.rows.end(),
            [](const ClockRow& a, const ClockRow& b) { return a.duty < b.duty; });
  return clocks;
}

Link read_link(const Field& field, Origin origin) {
  static const Keys known = {"name",          "latency_us",    "gbytes_per_s", "eager_bytes",
                             "gpus_per_port", "nvlink_domain", "origin",       "source"};
  const Object entry(field, known);
  Link link;
  link.name = entry["name"].string();
  link.latency_us = entry["latency_us"].number(0, 1e6);
  link.gbytes_per_s = entry["gbytes_per_s"].number(1e-6, 1e6);
  if (entry.has("eager_bytes")) link.eager_bytes = entry["eager_bytes"].integer(0);
  if (entry.has("gpus_per_port")) link.gpus_per_port = entry["gpus_per_port"].integer(1);
  if (entry.has("nvlink_domain")) link.nvlink_domain = entry["nvlink_domain"].integer(1);
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
Device read_device(const Object& root) {
  static const Keys known = {"multiprocessors", "threads_per_multiprocessor", "compute_capability",   "l2_bytes",
                             "fp8_layouts",     "te_workspace_bytes",         "torch_workspace_bytes"};
  const std::string name = root["device"].string();
  if (!root.has("gpu")) return device_named(name);
  const Object gpu(root["gpu"], known);
  Device d = device(name, gpu["multiprocessors"].integer(1), gpu["threads_per_multiprocessor"].integer(32),
                    read_capability(gpu["compute_capability"]), Bytes(gpu["l2_bytes"].integer(0)));
  if (gpu.has("fp8_layouts")) {
    const Field layouts = gpu["fp8_layouts"];
    d.fp8_layouts.clear();
    for (const Field& each : layouts.list()) d.fp8_layouts.push_back(read_layout(each));
  }
  if (gpu.has("te_workspace_bytes")) d.te_workspace = Bytes(gpu["te_workspace_bytes"].integer(0));
  if (gpu.has("torch_workspace_bytes")) d.torch_workspace = Bytes(gpu["torch_workspace_bytes"].integer(0));
  return d;
}

/// Calls `body` with each value below an optional key: entries of a list, or members of an object.
template <class Body>
void each_below(const Object& root, const std::string& key, std::vector<Field> (Field::*values)() const,
                const Body& body) {
  if (!root.has(key)) return;
  const Field below = root[key];
  for (const Field& field : (below.*values)()) body(field);
}

void read_family(const Field& field, Profile& p) {
  static const Keys known = {"interpolation", "samples"};
  static const Keys of_interpolation = {"error", "tests"};
  const std::string key(field.key());
  const Family* f = find_family(key);
  if (f == nullptr) {
    Keys names;
    for (const auto& each : families()) names.push_back(each.name);
    field.fail("unknown kernel family", {}, nearest_name(key, names));
  }
  const Object entry(field, known);
  if (entry.has("interpolation")) {
    const Field how = entry["interpolation"];
    Interpolation& kept = p.interpolation[key];
    const Object figures(how, of_interpolation);
    kept.error = figures["error"].number(0, 1e6);
    kept.tests = static_cast<int>(std::min<std::int64_t>(figures["tests"].integer(0), 1'000'000));
  }
  p.samples[key] = read_samples(entry["samples"], *f, p.origin);
}

Profile read(const Field& whole) {
  static const Keys known = {"profile",  "name",       "device", "gpu",    "origin",  "memory_bytes",
                             "versions", "provenance", "links",  "clocks", "scalars", "families"};
  static const Keys of_scalar = {"value", "spread", "origin", "source"};
  const Object root(whole, known);
  if (root["profile"].integer(0) != 1) root["profile"].fail("unknown format version", {"1"});
  Profile p;
  p.name = root["name"].string();
  p.device = read_device(root);
  p.origin = root.origin(Origin::measured);
  p.memory = Bytes(root["memory_bytes"].integer(0));
  each_below(root, "versions", &Field::members,
             [&](const Field& field) { p.versions[std::string(field.key())] = field.string(); });
  each_below(root, "provenance", &Field::list, [&](const Field& field) { p.provenance.push_back(field.string()); });
  each_below(root, "links", &Field::list, [&](const Field& field) { p.links.push_back(read_link(field, p.origin)); });
  each_below(root, "clocks", &Field::list, [&](const Field& field) { p.clocks.push_back(read_clocks(field)); });
  each_below(root, "scalars", &Field::members, [&](const Field& field) {
    if (!is_scalar(field.key())) field.fail("no such number is ever asked for", {}, nearest_scalar(field.key()));
    const Object entry(field, of_scalar);
    p.scalars[std::string(field.key())] = {entry["value"].number(-no_limit, no_limit), entry["spread"].number(0, 1e6),
                                           entry.origin(p.origin), entry.source()};
  });
  const Field by_family = root["families"];
  for (const Field& field : by_family.members()) read_family(field, p);
  p.prepare();
  return p;
}

}  // namespace

Profile parse(const std::string& json, const std::string& file) {
  const JsonFile whole{json, file};
  simdjson::dom::parser parser;
  return read({parse_json(parser, whole), whole});
}

}  // namespace pipewright::profile
