// Measured beside predicted: a table of runs, where they differ, the order after measurement.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "pipewright/trial.hpp"

namespace pipewright::trial {
namespace {

using Json = nlohmann::ordered_json;

double predicted_ms(const Run& run) { return static_cast<double>(run.prediction.step_ns) / 1e6; }
double error(const Run& run) { return predicted_ms(run) / *run.step_ms - 1; }
/// What is not modelled leaves no interval.
bool bounded(const Run& run) { return run.prediction.ignored.empty(); }
bool inside(const Run& run) {
  const double ns = *run.step_ms * 1e6;
  return ns >= static_cast<double>(run.prediction.interval_low_ns) &&
         ns <= static_cast<double>(run.prediction.interval_high_ns);
}
std::string percent(double fraction) { return fmt::format("{:+.1f} %", 100 * fraction); }

const predict::RankPrediction& rank_of(const Run& run, int rank) {
  const auto& s = run.candidate.scenario;
  const auto of_stage = std::max<scenario::Int>(1, s.cluster.num_gpus / s.settings.pipeline_model_parallel_size);
  return run.prediction.ranks.at(static_cast<std::size_t>(rank / of_stage));
}

/// Of the rank that is fullest in the measurement.
const RankMemory* fullest(const Run& run) {
  const auto most = std::max_element(run.memory.begin(), run.memory.end(),
                                     [](const auto& a, const auto& b) { return a.reserved < b.reserved; });
  return most == run.memory.end() ? nullptr : &*most;
}

std::string beside(Bytes measured, Bytes predicted) {
  return fmt::format("{:.2f} ({:.2f})", gib(measured), gib(predicted));
}

std::string wrong_verdict(const Run& run) {
  if (run.status == Status::out_of_memory && run.prediction.fits) return "; it was predicted to fit";
  if (run.status == Status::ok && !run.prediction.fits) return "it ran, and was predicted not to fit";
  return "";
}

/// With the lines before it: a traceback's end says where.
std::string failure_text(const Run& run) {
  const bool by_name = run.cause != Cause::none && run.status != Status::out_of_memory;
  std::string out =
      fmt::format("- {} {}{}: {}{} ({})\n", run.candidate.name, name(run.status),
                  by_name ? fmt::format(" ({})", name(run.cause)) : "", run.reason, wrong_verdict(run), run.log);
  if (run.status == Status::out_of_memory) return out;
  for (const auto& line : run.lines) out += fmt::format("    {}\n", line);
  return out;
}

std::vector<const Run*> by(const std::vector<Run>& runs, const std::function<double(const Run&)>& key) {
  std::vector<const Run*> order;
  for (const auto& run : runs)
    if (run.step_ms) order.push_back(&run);
  std::stable_sort(order.begin(), order.end(), [&](const Run* a, const Run* b) { return key(*a) < key(*b); });
  return order;
}
double measured_ms(const Run& run) { return *run.step_ms; }
std::vector<const Run*> measured_order(const std::vector<Run>& runs) { return by(runs, measured_ms); }
std::vector<const Run*> predicted_order(const std::vector<Run>& runs) { return by(runs, predicted_ms); }

/// "best = alternative-1 < given": equal where the table prints one time.
std::string names(const std::vector<const Run*>& order, double (*key)(const Run&)) {
  std::string out, before;
  for (const auto* run : order) {
    const auto now = fmt::format("{:.2f}", key(*run));
    out += (out.empty() ? "" : now == before ? " = " : " < ") + run->candidate.name;
    before = now;
  }
  return out;
}

std::string differences_text(const std::vector<Run>& runs) {
  Table table({"run", "rank", "kind", "busy ms", "predicted", "exposed ms", "predicted"});
  bool any = false;
  for (const auto& run : runs)
    for (const auto& d : differences(run)) {
      any = true;
      const auto number = [&](const char* none_of, double value) {
        return d.kind == none_of ? std::string() : fmt::format("{:.1f}", value);
      };
      table.add({run.candidate.name, std::to_string(d.rank), d.kind, number("idle", d.busy_ms),
                 number("idle", d.predicted_busy_ms), number("comp", d.exposed_ms),
                 number("comp", d.predicted_exposed_ms)});
    }
  return any ? fmt::format(
                   "\nStep {}, recorded (exposed: no compute kernel runs; idle: what is left of the unrecorded "
                   "step, hosts and the bubble)\n{}",
                   recorded_step, table.text())
             : "";
}

/// What the measured steps say of this machine's hosts.
std::string hosts_text(const std::vector<Run>& runs) {
  std::string each;
  for (const auto& run : runs)
    if (run.host_factor)
      each += fmt::format("{}{} {:.2f}", each.empty() ? "" : ", ", run.candidate.name, *run.host_factor);
  if (each.empty()) return "";
  return fmt::format(
      "host_time_factor that meets the measured step, if all of the error is the hosts': {}; "
      "`pipewright profile calibrate` makes a profile of it\n",
      each);
}

/// What is said of runs, each once behind the names of all that it is said of.
class Remarks {
 public:
  void add(const std::string& name, const std::string& remark) {
    const auto same = std::ranges::find(all_, remark, &Remark::text);
    if (same == all_.end())
      all_.push_back({remark, name});
    else
      same->names += ", " + name;
  }
  std::string text(const char* before) const {
    std::string out;
    for (const auto& each : all_) out += fmt::format("{}{}: {}\n", before, each.names, each.text);
    return out;
  }

 private:
  struct Remark {
    std::string text, names;
  };
  std::vector<Remark> all_;
};

}  // namespace

std::vector<Difference> differences(const Run& run) {
  std::vector<Difference> out;
  for (const auto& [rank, summary] : run.recorded) {
    if (!run.step_ms || summary.span_us <= 0) continue;
    const auto& account = rank_of(run, rank).account;
    const auto ms = [](const auto& by_kind, const char* kind, double of_a_ms) {
      const auto found = by_kind.find(kind);
      return found == by_kind.end() ? 0.0 : static_cast<double>(found->second) / of_a_ms;
    };
    Difference idle{rank, "idle", 0, 0, *run.step_ms, predicted_ms(run)};
    for (const char* kind : {"comp", "p2p", "ep", "coll", "d2h", "h2d"}) {
      const Difference d{rank,
                         kind,
                         ms(summary.busy_us, kind, 1e3),
                         ms(account.traced_busy, kind, 1e6),
                         ms(summary.exposed_us, kind, 1e3),
                         ms(account.traced_exposed, kind, 1e6)};
      const bool computes = d.kind == "comp";
      idle.exposed_ms -= computes ? d.busy_ms : d.exposed_ms;
      idle.predicted_exposed_ms -= computes ? d.predicted_busy_ms : d.predicted_exposed_ms;
      if (d.busy_ms > 0 || d.predicted_busy_ms > 0) out.push_back(d);
    }
    idle.exposed_ms = std::max(0.0, idle.exposed_ms);
    idle.predicted_exposed_ms = std::max(0.0, idle.predicted_exposed_ms);
    out.push_back(idle);
  }
  return out;
}

std::string text(const std::vector<Run>& runs) {
  Table table({"run", "step ms", "predicted", "error", "90 %", "allocated GiB (predicted)", "reserved GiB (predicted)",
               "outside GiB (predicted)"});
  std::string remarks;
  for (const auto& run : runs) {
    std::vector<std::string> row = {run.candidate.name,
                                    std::string(name(run.status)),
                                    fmt::format("{:.2f}", predicted_ms(run)),
                                    "",
                                    "",
                                    "",
                                    "",
                                    ""};
    if (run.step_ms) {
      row[1] = fmt::format("{:.2f}", *run.step_ms);
      row[3] = percent(error(run));
      row[4] = !bounded(run) ? "none" : inside(run) ? "inside" : "outside";
    }
    if (const auto* memory = fullest(run)) {
      const auto& predicted = rank_of(run, memory->rank);
      row[5] = beside(memory->allocated, predicted.walk.peak_allocated);
      row[6] = beside(memory->reserved, predicted.walk.peak_reserved);
      if (memory->outside) row[7] = beside(*memory->outside, predicted.outside_allocator);
    }
    table.add(std::move(row));
    if (run.candidate.label != run.candidate.name)
      remarks += fmt::format("- {}: {}\n", run.candidate.name, run.candidate.label);
    if (!run.reason.empty())
      remarks += failure_text(run);
    else if (const auto wrong = wrong_verdict(run); !wrong.empty())
      remarks += fmt::format("- {}: {}\n", run.candidate.name, wrong);
  }
  Remarks notes;
  for (const auto& run : runs)
    for (const auto& note : run.notes) notes.add(run.candidate.name, note);
  remarks += notes.text("- ");
  std::string out = table.text() + (remarks.empty() ? "" : "\n" + remarks) + differences_text(runs);
  const auto measured = measured_order(runs), predicted = predicted_order(runs);
  if (measured.empty()) return out + "\nnothing ran to its end\n";
  out += fmt::format("\nfastest: {} ({:.2f} ms)\n", measured.front()->candidate.name, *measured.front()->step_ms);
  out += hosts_text(runs);
  if (measured.size() > 1) {
    out += fmt::format("order measured:  {}\norder predicted: {}\n", names(measured, measured_ms),
                       names(predicted, predicted_ms));
    const double cost = *predicted.front()->step_ms / *measured.front()->step_ms - 1;
    out += cost == 0 ? "the one predicted fastest is the fastest\n"
                     : fmt::format("the one predicted fastest is {} slower than the fastest\n", percent(cost));
  }
  return out;
}

std::string json(const std::vector<Run>& runs) {
  Json rows = Json::array();
  for (const auto& run : runs) {
    Json memory = Json::array(), recorded = Json::array();
    for (const auto& m : run.memory) {
      const auto& p = rank_of(run, m.rank);
      memory.push_back({{"rank", m.rank},
                        {"peak_allocated_bytes", m.allocated.value},
                        {"predicted_peak_allocated_bytes", p.walk.peak_allocated.value},
                        {"peak_reserved_bytes", m.reserved.value},
                        {"predicted_peak_reserved_bytes", p.walk.peak_reserved.value},
                        {"outside_allocator_bytes", m.outside ? Json(m.outside->value) : Json()},
                        {"predicted_outside_allocator_bytes", p.outside_allocator.value}});
    }
    for (const auto& d : differences(run))
      recorded.push_back({{"rank", d.rank},
                          {"kind", d.kind},
                          {"busy_ms", d.busy_ms},
                          {"predicted_busy_ms", d.predicted_busy_ms},
                          {"exposed_ms", d.exposed_ms},
                          {"predicted_exposed_ms", d.predicted_exposed_ms}});
    rows.push_back({{"name", run.candidate.name},
                    {"label", run.candidate.label},
                    {"status", name(run.status)},
                    {"cause", run.cause == Cause::none ? Json() : Json(name(run.cause))},
                    {"reason", run.reason},
                    {"lines", run.lines},
                    {"log", run.log},
                    {"step_ms", run.step_ms ? Json(*run.step_ms) : Json()},
                    {"steps_done", run.steps.done},
                    {"samples_ms", run.steps.samples_ms},
                    {"from_recording", run.from_recording},
                    {"host_time_factor", run.host_factor ? Json(*run.host_factor) : Json()},
                    {"predicted_step_ms", predicted_ms(run)},
                    {"interval_ms", bounded(run) ? Json{static_cast<double>(run.prediction.interval_low_ns) / 1e6,
                                                        static_cast<double>(run.prediction.interval_high_ns) / 1e6}
                                                 : Json()},
                    {"error", run.step_ms ? Json(error(run)) : Json()},
                    {"predicted_to_fit", run.prediction.fits},
                    {"ranks", memory},
                    {"recorded", recorded},
                    {"notes", run.notes}});
  }
  const auto list = [](const std::vector<const Run*>& order) {
    Json out = Json::array();
    for (const auto* run : order) out.push_back(run->candidate.name);
    return out;
  };
  const Json result = {
      {"runs", rows}, {"measured_order", list(measured_order(runs))}, {"predicted_order", list(predicted_order(runs))}};
  return result.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string text(const std::vector<Candidate>& candidates, const std::vector<Command>& commands) {
  std::string out;
  Remarks remarks;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    out += fmt::format("# {}: {}\n{}\n", candidates[i].name, candidates[i].label, shell_line(commands[i]));
    for (const auto& remark : commands[i].remarks) remarks.add(candidates[i].name, "flags: " + remark);
  }
  return remarks.text("# ") + out;
}

std::string json(const std::vector<Candidate>& candidates, const std::vector<Command>& commands) {
  Json rows = Json::array();
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    Json variables = Json::object();
    for (const auto& [name, value] : commands[i].environment) variables[name] = value;
    rows.push_back({{"name", candidates[i].name},
                    {"label", candidates[i].label},
                    {"environment", variables},
                    {"words", commands[i].words},
                    {"remarks", commands[i].remarks},
                    {"command", shell_line(commands[i])}});
  }
  return Json({{"commands", rows}}).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace pipewright::trial
