// pipewright profile show|merge|diff|derive: what a profile knows, and profiles made of others.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "input.hpp"
#include "pipewright/predict.hpp"
#include "pipewright/profile.hpp"
#include "pipewright/public_tables.hpp"
#include "pipewright/report.hpp"
#include "pipewright/scenario/io.hpp"
#include "pipewright/validate.hpp"

namespace pipewright::cli {
namespace {

using Json = nlohmann::ordered_json;

profile::Profile load(const std::string& name) { return profile::load(name, {"command line", 0}); }

std::string shape(const profile::Family& f, const profile::Sample& s) {
  std::string text;
  for (std::size_t i = 0; i < f.dims.size(); ++i) text += fmt::format("{}{}={}", i ? " " : "", f.dims[i], s.dims.at(i));
  return text;
}

/// FLOP/s where a family computes, else B/s, in tera.
std::string rate(const profile::Family& f, const profile::Sample& s) {
  const double flop = f.flop(s.dims), bytes = f.bytes(s.dims);
  if (flop > 0) return fmt::format("{:.0f} TFLOP/s", flop / s.ns / 1e3);
  return bytes > 0 ? fmt::format("{:.3g} TB/s", bytes / s.ns / 1e3) : std::string();
}

/// The weakest origin among the samples.
profile::Origin weakest(const std::vector<profile::Sample>& samples) {
  auto result = profile::Origin::measured;
  for (const auto& s : samples) result = std::max(result, s.origin);
  return result;
}

/// The profile's own links, and the published ones that it answers with.
std::vector<profile::Link> links_of(const profile::Profile& p) {
  auto links = p.links;
  for (const auto& published : profile::published_links()) {
    const bool own =
        std::any_of(p.links.begin(), p.links.end(), [&](const auto& l) { return l.name == published.name; });
    if (!own) links.push_back(published);
  }
  return links;
}

struct FamilySummary {
  std::string name;
  const std::vector<profile::Sample>* samples;
  double spread = 0;  ///< median over the samples
  profile::Interpolation tested;
};

FamilySummary summarise(const std::string& name, const std::vector<profile::Sample>& samples) {
  std::vector<double> spreads;
  for (const auto& s : samples) spreads.push_back(s.spread);
  const auto middle = spreads.begin() + static_cast<std::ptrdiff_t>(spreads.size() / 2);
  if (!spreads.empty()) std::nth_element(spreads.begin(), middle, spreads.end());
  return {name, &samples, spreads.empty() ? 0 : *middle, profile::leave_one_out(name, samples)};
}

std::string show_text(const profile::Profile& p, const std::string& only_family) {
  if (!only_family.empty()) {
    const auto found = p.samples.find(only_family);
    if (found == p.samples.end()) {
      std::vector<std::string> known;
      for (const auto& [name, ignored] : p.samples) known.push_back(name);
      throw UsageError({p.name, 0}, only_family, "the profile has no such family", known,
                       nearest_name(only_family, known));
    }
    const auto& f = profile::family(only_family);
    Table table({"shape", "us", "spread", "samples", "rate", "origin"});
    for (const auto& s : found->second) {
      table.add({shape(f, s), fmt::format("{:.2f}", ns_to_us(s.ns)), fmt::format("{:.1f} %", 100 * s.spread),
                 fmt::format("{}", s.count), rate(f, s), std::string(profile::name(s.origin))});
    }
    return fmt::format("{}: {}\n\n{}", only_family, f.what, table.text());
  }
  std::string text =
      fmt::format("{}: {}, {}, {}\n", p.name, p.device.name, format_bytes(p.memory), profile::name(p.origin));
  for (const auto& [key, value] : p.versions) text += fmt::format("  {} {}\n", key, value);
  for (const auto& line : p.provenance) text += fmt::format("  from: {}\n", line);

  Table families({"kernels", "shapes", "spread", "interpolation error", "origin"});
  for (const auto& [name, samples] : p.samples) {
    const auto s = summarise(name, samples);
    families.add({name, fmt::format("{}", samples.size()), fmt::format("{:.1f} %", 100 * s.spread),
                  s.tested.tests == 0 ? "-" : fmt::format("{:.1f} %", 100 * s.tested.error),
                  std::string(profile::name(weakest(samples)))});
  }
  text += "\n" + families.text() +
          "spread: of a shape's samples, median over the shapes; interpolation error: each shape predicted from the "
          "others, root mean square\n";

  const auto all_links = links_of(p);
  if (!all_links.empty()) {
    Table links({"link", "latency us", "GB/s", "eager", "origin"});
    for (const auto& l : all_links) {
      links.add({l.name, fmt::format("{:.1f}", l.latency_us), fmt::format("{:.1f}", l.gbytes_per_s),
                 format_bytes(Bytes(l.eager_bytes)), std::string(profile::name(l.origin))});
    }
    text += "\n" + links.text();
  }
  for (const auto& c : p.clocks) {
    Table rows({"duty (" + c.precision + ", " + c.kernels + ")", "MHz", "W", "matrix", "attention", "memory"});
    for (const auto& r : c.rows) {
      rows.add({fmt::format("{:.2f}", r.duty), fmt::format("{:.0f}", r.mhz), fmt::format("{:.0f}", r.watts),
                fmt::format("{:.3f}", r.matrix), fmt::format("{:.3f}", r.attention), fmt::format("{:.3f}", r.memory)});
    }
    text += "\n" + rows.text();
  }
  if (!p.scalars.empty()) {
    Table scalars({"scalar", "value", "spread", "origin"});
    for (const auto& [name, s] : p.scalars) {
      scalars.add({name, fmt::format("{:.15g}", s.value), fmt::format("{:.1f} %", 100 * s.spread),
                   std::string(profile::name(s.origin))});
    }
    text += "\n" + scalars.text();
  }
  return text;
}

std::string show_json(const profile::Profile& p) {
  Json out = {{"name", p.name},
              {"device", p.device.name},
              {"origin", profile::name(p.origin)},
              {"memory_bytes", p.memory.value},
              {"versions", p.versions},
              {"provenance", p.provenance}};
  Json& families = out["families"] = Json::object();
  for (const auto& [name, samples] : p.samples) {
    const auto s = summarise(name, samples);
    families[name] = {{"shapes", samples.size()},
                      {"median_spread", s.spread},
                      {"interpolation_tests", s.tested.tests},
                      {"interpolation_error", s.tested.error}};
  }
  Json& links = out["links"] = Json::array();
  for (const auto& l : links_of(p)) {
    links.push_back({{"name", l.name},
                     {"latency_us", l.latency_us},
                     {"gbytes_per_s", l.gbytes_per_s},
                     {"eager_bytes", l.eager_bytes},
                     {"origin", profile::name(l.origin)},
                     {"source", l.source}});
  }
  Json& scalars = out["scalars"] = Json::object();
  for (const auto& [name, s] : p.scalars) {
    scalars[name] = {
        {"value", s.value}, {"spread", s.spread}, {"origin", profile::name(s.origin)}, {"source", s.source}};
  }
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string diff_text(const std::vector<profile::Difference>& differences) {
  if (differences.empty()) return "no difference\n";
  Table table({"what", "a", "b", "b/a - 1"});
  for (const auto& d : differences) {
    const bool both = !d.only_in_a && !d.only_in_b;
    table.add({d.what, d.only_in_b ? "-" : fmt::format("{:.6g}", d.a), d.only_in_a ? "-" : fmt::format("{:.6g}", d.b),
               both && d.a != 0 ? fmt::format("{:+.1f} %", 100 * (d.b / d.a - 1)) : "-"});
  }
  return table.text();
}

std::string diff_json(const std::vector<profile::Difference>& differences) {
  Json out = {{"differences", Json::array()}};
  for (const auto& d : differences) {
    Json row = {{"what", d.what}};
    row["a"] = d.only_in_b ? Json() : Json(d.a);
    row["b"] = d.only_in_a ? Json() : Json(d.b);
    out["differences"].push_back(std::move(row));
  }
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

struct ProfileOptions {
  std::vector<std::string> profiles, runs, tables, measured;
  KeptFile out;
  std::string json, family, gpu = "h100-sxm";
};

/// A profile that knows only this machine's speed, to stand before the measured one: that of its hosts from runs that
/// wait for them, that of its GPUs from the others.
profile::Profile calibrated(const ProfileOptions& options) {
  std::vector<validate::Observation> runs;
  std::vector<scenario::Model> models;
  std::vector<double> hosts;
  std::vector<std::string> by_kernels, by_hosts;
  std::optional<profile::Profiles> base;
  std::string first;
  for (const auto& file : scenario_files(options.runs)) {
    auto run = scenario::read(file);
    if (!run.measured) throw UsageError({file, 0}, {}, "has no section `measured`");
    name_gpu(run, options.profiles);
    require_legal(run);
    auto known = predict::profiles_of(run, options.profiles);
    if (base && known.first().device.name != base->first().device.name)
      throw UsageError({file, 0}, "cluster.profile",
                       fmt::format("is of {}, that of {} of {}: one calibration is of one machine",
                                   known.first().device.name, first, base->first().device.name));
    if (!base) first = file;
    base = std::move(known);
    const auto cold = predict::predict(run, *base);
    if (const auto host = validate::host_factor_of(run, *base, cold)) {
      hosts.push_back(*host);
      by_hosts.push_back(run.name);
      continue;
    }
    const double slowdown = validate::slowdown_of(run, *base, cold);
    if (!validate::explains_speed(slowdown, *base)) {
      throw UsageError(
          {file, 0}, run.measured->step_alone() ? "measured.step_ms" : "measured.forward_backward_ms",
          fmt::format(
              "would mean kernels {}{:.2f} times as slow as the profile's: more than machines of one kind differ, "
              "and no host explains it; `validate --traces` shows where the time is",
              slowdown >= validate::most_slowdown    ? "more than "
              : slowdown <= validate::least_slowdown ? "less than "
                                                     : "",
              slowdown));
    }
    const auto model = std::find(models.begin(), models.end(), run.model);
    runs.push_back({slowdown, validate::own_spread(cold, *base), static_cast<int>(model - models.begin())});
    if (model == models.end()) models.push_back(run.model);
    by_kernels.push_back(run.name);
  }
  const auto& measured = base->first();
  profile::Profile result;
  result.name =
      options.out.path == "-" ? measured.name + "-calibrated" : std::filesystem::path(options.out.path).stem().string();
  result.device = measured.device;
  result.memory = measured.memory;
  auto all = by_kernels;
  all.insert(all.end(), by_hosts.begin(), by_hosts.end());
  result.provenance = {fmt::format("pipewright profile calibrate {} on {}", fmt::join(all, ", "), measured.name)};
  if (!runs.empty()) {
    // What comes next is most often the first run's model in other settings.
    const auto speed =
        validate::expected_speed(runs, runs.front().model, runs.front().spread, base->scalar("machine.spread").value);
    const auto full = validate::with_speed(*base, speed, fmt::format("{}", fmt::join(by_kernels, ", "))).first();
    for (const char* name : {"machine.slowdown", "machine.spread"}) result.scalars[name] = full.scalars.at(name);
  }
  if (!hosts.empty())
    result.scalars["host.time_factor"] =
        validate::host_factor(hosts, *base, fmt::format("{}", fmt::join(by_hosts, ", ")));
  return result;
}

}  // namespace

void add_profile(Command& app, Outcome&) {
  auto& command = app.add_subcommand("profile", "Show, merge or compare profiles");
  const auto options = std::make_shared<ProfileOptions>();

  auto& show = command.add_subcommand("show", "What a profile holds and how well it interpolates");
  show.add_option("PROFILE", options->profiles, "name or file").required().expected(1);
  show.add_option("--family", options->family, "every shape of one kernel family");
  show.add_option("--json", options->json, "write JSON to this file (-: standard output)");
  show.callback([options] {
    const auto p = load(options->profiles.front());
    if (options->json != "-") write_result("-", show_text(p, options->family));
    if (!options->json.empty()) write_result(options->json, report::stamped(show_json(p)));
  });

  auto& merge = command.add_subcommand("merge", "All entries of several profiles; the first that has one wins");
  merge.add_option("PROFILES", options->profiles, "names or files").required().expected(2, 1000);
  options->out.add_to(merge, "profile");
  merge.callback([options] {
    options->out.require_free();
    std::vector<profile::Profile> all;
    for (const auto& name : options->profiles) all.push_back(load(name));
    write_result(options->out.path, profile::to_json(profile::merge(all)));
  });

  auto& diff = command.add_subcommand("diff", "Every number in which two profiles differ");
  diff.add_option("PROFILES", options->profiles, "two names or files").required().expected(2);
  diff.add_option("--json", options->json, "write JSON to this file (-: standard output)");
  diff.callback([options] {
    const auto differences = profile::diff(load(options->profiles[0]), load(options->profiles[1]));
    if (options->json != "-") write_result("-", diff_text(differences));
    if (!options->json.empty()) write_result(options->json, report::stamped(diff_json(differences)));
  });

  auto& calibrate = command.add_subcommand(
      "calibrate",
      "This machine's speed, GPUs and hosts, from the step times of measured runs, to stand before a measured profile");
  calibrate.add_option("RUNS", options->runs, "scenario files with `measured:`, or directories of them").required();
  calibrate.add_option("--profile", options->profiles, "measured profile, name or file (default: the runs' own)");
  options->out.add_to(calibrate, "profile");
  calibrate.footer(
      "Example:\n  pipewright profile calibrate run1.yaml run2.yaml --out mine.json\n"
      "  pipewright plan next.yaml --profile mine.json --profile h200-sxm");
  calibrate.callback([options] {
    options->out.require_free();
    write_result(options->out.path, profile::to_json(calibrated(*options)));
  });

  auto& derive = command.add_subcommand(
      "derive", "A GPU from another one's profile and both data sheets, every entry marked derived");
  derive.add_option("PROFILE", options->profiles, "name or file of the measured profile").required().expected(1);
  derive.add_option("--gpu", options->gpu, "name of the data sheet (h100-sxm)");
  options->out.add_to(derive, "profile");
  const auto& tables = derive.add_option(
      "--tables", options->tables, "profile whose published entries are kept, of this GPU or its kin (repeatable)");
  derive
      .add_option("--measured", options->measured,
                  "profile whose measured entries are kept, of this GPU (repeatable, first has precedence)")
      .excludes(tables);
  derive.footer(
      "Example:\n  pipewright profile derive h200-sxm --gpu gb200-nvl72 --tables gb200-nvl72 --force --out "
      "profiles/gb200-nvl72.json\n"
      "  pipewright profile derive h200-sxm --gpu h100-sxm --measured my-h100.json --out h100.json");
  derive.callback([options] {
    options->out.require_free();
    const Position gpu = {"--gpu", 0};
    const auto& sheet = profile::data_sheet(options->gpu, gpu);
    const auto measured = load(options->profiles.front());
    if (options->tables.empty()) {
      const auto derived = profile::derive(measured, sheet);
      std::vector<profile::Profile> own;
      for (const auto& name : options->measured) own.push_back(load(name));
      return write_result(options->out.path,
                          profile::to_json(own.empty() ? derived : profile::with_measured(derived, own)));
    }
    std::vector<profile::Profile> told;
    for (const auto& name : options->tables) told.push_back(load(name));
    const auto result = tables::complete(measured, sheet, told);
    write_result(options->out.path, profile::to_json(result.profile));
    if (options->out.path != "-") write_result("-", tables::text(result));
  });
}

}  // namespace pipewright::cli
