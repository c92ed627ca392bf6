// `simulate` for people: verdict first, then where the time goes, then where the memory goes, then why.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "format.hpp"
#include "pipewright/report.hpp"
#include "pressure_text.hpp"

namespace pipewright::report {
namespace {

std::string headline(const predict::Prediction& p) {
  return fmt::format("{}\n{}\n{}, {:.1f} tokens/s/GPU\n{}\nprofile {} ({}), Megatron Core {}\n", p.scenario,
                     wrapped(fmt::format("step {} ms ({}): forward-backward {}, optimizer {}", ms(p.step_ns),
                                         interval(p), ms(p.forward_backward_ns), ms(p.optimizer_ns))),
                     throughput(p), p.tokens_per_s_per_gpu, verdict(p), p.profile, p.origins.text(), p.megatron_core);
}

/// Shares of the step of the rank that finishes last, without what is too small to show.
std::string shares(const predict::Prediction& p) {
  const auto& account = p.ranks.at(static_cast<std::size_t>(p.last_rank)).account;
  std::string out = fmt::format("rank {}, the last to finish: busy {}", p.last_rank, share(account.busy, p.step_ns));
  const auto shown = [&](std::int64_t ns) { return 2000 * ns >= p.step_ns; };  // from 0.05 % on
  if (shown(account.recompute)) out += fmt::format(" (recompute {})", share(account.recompute, p.step_ns));
  for (const auto& cause : exposed_causes) {
    if (shown(account.*cause.member)) {
      out += fmt::format(", exposed {} {}", cause.name, share(account.*cause.member, p.step_ns));
    }
  }
  if (shown(account.bubble)) out += fmt::format(", bubble {}", share(account.bubble, p.step_ns));
  if (shown(account.idle)) out += fmt::format(", idle {}", share(account.idle, p.step_ns));
  return wrapped(out) + "\n";
}

/// Which kernel families each kind of source timed; the page and the JSON of a profile have the details.
std::string sources(const predict::Prediction& p) {
  if (p.time_sources.empty()) return "";
  std::map<std::string, std::vector<std::string>> families;
  for (const auto& [family, source] : p.time_sources) families[source.substr(0, source.find(": "))].push_back(family);
  std::string out = "Where kernel times come from\n";
  for (const auto& [source, names] : families) {
    out += wrapped(fmt::format("- {}: {}", source, fmt::join(names, ", "))) + "\n";
  }
  return out;
}

std::string rank_times(const predict::Prediction& p) {
  std::vector<std::string> header = {"rank", "busy", "recompute"};
  for (const auto& cause : exposed_causes) header.emplace_back(cause.name);
  header.insert(header.end(), {"bubble", "idle", "forward-backward"});
  Table table(header);
  for (const auto& rank : p.ranks) {
    const auto& account = rank.account;
    std::vector<std::string> row = {fmt::format("{}", rank.pp_rank), ms(account.busy), ms(account.recompute)};
    for (const auto& cause : exposed_causes) row.push_back(ms(account.*cause.member));
    row.insert(row.end(), {ms(account.bubble), ms(account.idle), ms(account.forward_backward_end)});
    table.add(std::move(row));
  }
  return "Time of each pipeline rank, ms (busy contains recompute; p2p ... host: exposed, the compute stream waits)\n" +
         table.text();
}

/// What is lost when: fill and drain of the pipeline, and the steady state between.
std::string phases(const predict::Prediction& p) {
  if (p.ranks.size() < 2) return "";
  constexpr std::array names = {"warm-up", "steady", "cool-down"};
  std::vector<std::string> header = {"rank"};
  for (const char* name : names) header.insert(header.end(), {fmt::format("{} p2p", name), "bubble", "host"});
  header.emplace_back("slack");
  Table table(header);
  for (const auto& rank : p.ranks) {
    std::vector<std::string> row = {fmt::format("{}", rank.pp_rank)};
    for (std::size_t phase = 0; phase < names.size(); ++phase) {
      const timeline::Split& split = rank.account.by_phase[phase];
      for (const auto ns : {split.p2p, split.bubble, split.host}) row.push_back(ms(ns));
    }
    row.push_back(ms(rank.slack_ns));
    table.add(std::move(row));
  }
  return "Lost by phase, ms (slack: how much later a rank's computation may be without the step being longer)\n" +
         table.text();
}

/// Exchanges inside and beside layers, of the rank that finishes last.
std::string communication(const predict::Prediction& p) {
  constexpr std::size_t shown = 16;
  const auto& rank = p.ranks.at(static_cast<std::size_t>(p.last_rank));
  const auto& rows = rank.account.communication;
  if (rows.empty()) return "";
  Table table({"exchange", "times", "ms each", "exposed each", "exposed", "warm-up", "steady", "cool-down", "end"});
  const auto row = [&](const std::string& what, const timeline::Communication& c) {
    const auto each = [&](std::int64_t ns) { return fmt::format("{:.3f}", static_cast<double>(ns) / 1e6 / c.times); };
    const std::int64_t exposed = c.exposed_in_all();
    std::vector<std::string> cells = {what, fmt::format("{}", c.times), each(c.busy), each(exposed),
                                      share(exposed, c.busy)};
    for (const auto ns : c.exposed) cells.push_back(ms(ns));
    table.add(std::move(cells));
  };
  timeline::Communication rest;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i < shown)
      row(rows[i].what, rows[i]);
    else
      rest += rows[i];
  }
  if (rest.times > 0) row(fmt::format("{} others", rows.size() - shown), rest);
  return fmt::format(
             "Communication of rank {}, the last to finish (exposed: its compute stream waits for it), ms by phase\n",
             rank.pp_rank) +
         table.text();
}

std::string rank_memory(const predict::Prediction& p) {
  Table table({"rank", "static", "peak allocated", "at", "reserved", "outside", "in all", "to spare"});
  for (const auto& rank : p.ranks) {
    table.add({fmt::format("{}", rank.pp_rank), gibibytes(rank.walk.static_bytes), gibibytes(rank.walk.peak_allocated),
               rank.walk.peak_at, gibibytes(rank.walk.peak_reserved), gibibytes(rank.outside_allocator),
               gibibytes(rank.walk.peak_reserved + rank.outside_allocator), gibibytes(spare(p, rank))});
  }
  return fmt::format("Memory of each pipeline rank, GiB (limit {}, margin {})\n", gibibytes(p.memory_limit),
                     gibibytes(p.memory_margin)) +
         table.text();
}

std::string exposed_because(const predict::Prediction& p) {
  constexpr std::array names = {"waits for receives", "waits for sends", "queued behind another transfer",
                                "device synchronised"};
  std::vector<std::string> parts;
  for (std::size_t cause = 0; cause < names.size(); ++cause) {
    std::int64_t ns = 0;
    for (const auto& b : p.boundaries)
      for (const auto& phase : b.by_phase) ns += phase[cause];
    if (ns > 0) parts.push_back(fmt::format("{} {} ms", names[cause], ms(ns)));
  }
  return parts.empty() ? "" : wrapped(fmt::format("exposed because: {}", fmt::join(parts, ", "))) + "\n";
}

std::string offload(const predict::Prediction& p) {
  Table table({"rank", "module", "groups moved", "kept", "missed", "GiB each way", "D2H ms", "H2D ms", "pinned GiB"});
  bool any = false;
  for (const auto& rank : p.ranks) {
    const auto busy = [&](const char* kind) {
      const auto found = rank.account.traced_busy.find(kind);
      return found == rank.account.traced_busy.end() ? std::string("-") : ms(found->second);
    };
    bool first = true;
    for (const auto& moved : rank.walk.offloaded) {
      any = true;
      const bool once = std::exchange(first, false);  // copies and pinned memory are the rank's
      table.add({fmt::format("{}", rank.pp_rank), moved.module, fmt::format("{}", moved.groups),
                 fmt::format("{}", moved.kept), fmt::format("{}", moved.missed), gibibytes(moved.bytes),
                 once ? busy("d2h") : "", once ? busy("h2d") : "", once ? gibibytes(rank.walk.pinned) : ""});
    }
  }
  if (!any) return "";
  return "Activation offload of each pipeline rank in a step (missed: reloaded by the compute stream itself)\n" +
         table.text();
}

std::string boundaries(const predict::Prediction& p) {
  if (p.boundaries.empty()) return "";
  Table table({"boundary", "direction", "transfers", "MiB each", "exposed ms", "warm-up", "steady", "cool-down",
               "longest wait", "ms"});
  for (const auto& b : p.boundaries) {
    table.add({fmt::format("{} -> {}", b.from, b.to), b.forward ? "forward" : "backward",
               fmt::format("{}", b.transfers), fmt::format("{:.1f}", static_cast<double>(b.bytes.value) / (1 << 20)),
               ms(b.exposed), ms(exposed_in(b, 0)), ms(exposed_in(b, 1)), ms(exposed_in(b, 2)),
               b.longest_wait.empty() ? "-" : b.longest_wait, ms(b.longest)});
  }
  return "Pipeline transfers (exposed at both ends; waiting for the peer to produce the data is bubble)\n" +
         table.text() + exposed_because(p);
}

std::string owners(const predict::Prediction& p) {
  constexpr std::size_t shown = 12;
  const auto& rank = tightest_rank(p);
  Table table({"owner", "GiB", "of the peak"});
  for (std::size_t i = 0; i < std::min(shown, rank.walk.peak_owners.size()); ++i) {
    const auto& [owner, bytes] = rank.walk.peak_owners[i];
    table.add({owner, gibibytes(bytes), share(bytes.value, rank.walk.peak_allocated.value)});
  }
  if (rank.walk.peak_owners.size() > shown) {
    Bytes rest;
    for (std::size_t i = shown; i < rank.walk.peak_owners.size(); ++i) rest += rank.walk.peak_owners[i].bytes;
    table.add({fmt::format("{} others", rank.walk.peak_owners.size() - shown), gibibytes(rest),
               share(rest.value, rank.walk.peak_allocated.value)});
  }
  return fmt::format("Owners of the peak of rank {}, the tightest, at {}\n", rank.pp_rank, rank.walk.peak_at) +
         table.text() + fragmentation_text(rank);
}

std::string critical_path(const predict::Prediction& p) {
  if (p.critical_path.empty()) return "";
  constexpr std::size_t shown = 8;
  std::int64_t length = 0;
  for (const auto& step : p.critical_path) length += step.ns;
  const auto shares = critical_shares(p);
  Table table({"on the critical path because", "ms", "share", "steps"});
  for (std::size_t i = 0; i < std::min(shown, shares.size()); ++i) {
    table.add({timeline::name(shares[i].why), ms(shares[i].ns), share(shares[i].ns, length),
               fmt::format("{}", shares[i].steps)});
  }
  const auto longest = std::max_element(p.critical_path.begin(), p.critical_path.end(),
                                        [](const auto& a, const auto& b) { return a.ns < b.ns; });
  return "Critical path\n" + table.text() +
         wrapped(fmt::format("longest step: {}, {} ms ({})", longest->what, ms(longest->ns),
                             timeline::name(longest->why))) +
         "\n";
}

std::string levers(const predict::Prediction& p) {
  if (p.levers.empty()) return "";
  constexpr std::size_t shown = 10;
  Table table({"what would shorten the step", "gain ms", "of the step", "on the critical path"});
  for (std::size_t i = 0; i < std::min(shown, p.levers.size()); ++i) {
    const auto& lever = p.levers[i];
    table.add({lever.what, ms(lever.gain_ns), share(lever.gain_ns, p.step_ns), ms(lever.on_path_ns)});
  }
  return "Each change simulated again; it can gain at most what the critical path holds of it\n" + table.text();
}

std::string notes(const predict::Prediction& p) {
  if (p.notes.empty()) return "";
  std::string out = "Notes\n";
  for (const auto& note : p.notes) out += wrapped("- " + note) + "\n";
  return out;
}

}  // namespace

std::string simulate_text(const predict::Prediction& p) {
  std::string out = headline(p) + shares(p);
  for (const auto& section : {rank_times(p), phases(p), communication(p), rank_memory(p), pressure_text(p), offload(p),
                              boundaries(p), owners(p), critical_path(p), levers(p), sources(p), notes(p)}) {
    if (!section.empty()) out += "\n" + section;
  }
  return out;
}

}  // namespace pipewright::report
