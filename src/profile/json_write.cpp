// A profile as JSON (src/profile/FORMAT.md), one sample a line, so that two profiles can be compared with a plain diff.
// Same profile, same bytes.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "pipewright/profile.hpp"

namespace pipewright::profile {
namespace {

using Json = nlohmann::json;

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
    links.push_back(fmt::format("{{\"name\": {}, \"latency_us\": {}, \"gbytes_per_s\": {}, \"eager_bytes\": {}{}{}{}}}",
                                quoted(l.name), fixed(l.latency_us, 4), fixed(l.gbytes_per_s, 4), l.eager_bytes,
                                l.gpus_per_port == 1 ? "" : fmt::format(", \"gpus_per_port\": {}", l.gpus_per_port),
                                l.nvlink_domain == 0 ? "" : fmt::format(", \"nvlink_domain\": {}", l.nvlink_domain),
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
