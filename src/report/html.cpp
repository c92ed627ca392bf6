// One page that carries everything itself: what a step costs, where each rank's time and memory go, what the ranks do
// when, which candidates a plan compared. Follows the reader's light or dark setting; opens without a network.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "format.hpp"
#include "nodes.hpp"
#include "pipewright/report.hpp"
#include "pressure.hpp"

namespace pipewright::report {
namespace {

constexpr const char* style = R"(<style>
:root{color-scheme:light dark;--ink:#1a1c1f;--dim:#62676d;--page:#fff;--line:#d9dce0;--good:#1a7f37;--bad:#c62828;
--compute:#4c78a8;--recompute:#9d7bb0;--p2p:#f58518;--tp:#e4c13a;--cp:#b9a43b;--ep:#d37295;--dp:#72b7b2;
--offload:#a0522d;--host:#8c6d62;--bubble:#e8eaed;--idle:#f4f5f6;--forward:#4c78a8;--backward:#54a24b;
--finalisation:#72b7b2;--optimizer:#b279a2;--rest:#b5bac0;--outside:#8a8f96;--reserved:#d9dce0}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--dim:#9aa0a6;--page:#15171a;--line:#33373c;--good:#57c26f;
--bad:#ff6b61;--bubble:#2a2e33;--idle:#1f2226;--rest:#5a6067;--outside:#7d838a;--reserved:#33373c}}
body{font:14px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--page);max-width:1180px;margin:24px auto;
padding:0 16px}h1{font-size:20px;margin:0 0 4px}h2{font-size:15px;margin:28px 0 8px}p{margin:4px 0}
.dim{color:var(--dim)}.good{color:var(--good)}.bad{color:var(--bad)}
.cards{display:flex;flex-wrap:wrap;gap:12px;margin:14px 0}.card{border:1px solid var(--line);border-radius:8px;
padding:8px 14px}.card b{display:block;font-size:19px;font-variant-numeric:tabular-nums}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:3px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--dim);font-weight:500}th:first-child,td:first-child{text-align:left}td.text{text-align:left;white-space:normal}
tr.best td{font-weight:600}svg{display:block}svg text{fill:var(--ink);font-size:11px}svg text.on{fill:#fff;font-size:10px}
.key{display:inline-block;margin-right:14px}.key i{display:inline-block;width:11px;height:11px;border-radius:2px;
margin-right:5px;vertical-align:-1px;background:var(--c)}
</style>
)";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

class Page {
 public:
  Page(const predict::Prediction& p, const predict::Run& run) : p_(p), run_(run), nodes_(run) {}

  std::string text(const plan::Plan* plan) {
    add("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{}</title>\n{}</head><body>\n",
        escaped(p_.scenario), style);
    summary();
    if (plan != nullptr) alternatives(*plan);
    accounts();
    phases();
    timeline();
    memory();
    boundaries();
    critical_path();
    levers();
    sources();
    out_ += "</body></html>\n";
    return std::move(out_);
  }

 private:
  template <class... T>
  void add(fmt::format_string<T...> format, T&&... values) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<T>(values)...);
  }

  void card(const std::string& value, const char* what) {
    add("<div class=\"card\"><b>{}</b><span class=\"dim\">{}</span></div>\n", value, what);
  }

  void key(const char* colour, const std::string& name) {
    add("<span class=\"key\"><i style=\"--c:var(--{})\"></i>{}</span>\n", colour, escaped(name));
  }

  void rect(double x, double width, int y, int height, const char* colour, const std::string& tip) {
    add("<rect x=\"{:.4f}%\" width=\"{:.4f}%\" y=\"{}\" height=\"{}\" fill=\"var(--{})\"><title>{}</title></rect>\n", x,
        width, y, height, colour, escaped(tip));
  }

  void summary() {
    add("<h1>{}</h1>\n<p class=\"{}\">{}</p>\n", escaped(p_.scenario), p_.fits ? "good" : "bad", escaped(verdict(p_)));
    add("<p class=\"dim\">profile {} ({}), Megatron Core {}</p>\n<div class=\"cards\">\n", escaped(p_.profile),
        escaped(p_.origin), escaped(p_.megatron_core));
    card(ms(p_.step_ns) + " ms", "step");
    card(fmt::format("{} to {}", ms(p_.interval_low_ns), ms(p_.interval_high_ns)), "90 % interval, ms");
    card(ms(p_.forward_backward_ns) + " ms", "forward-backward");
    card(ms(p_.optimizer_ns) + " ms", "optimizer");
    card(fmt::format("{:.1f}", p_.tflops_per_gpu), "TFLOP/s/GPU");
    card(fmt::format("{:.0f}", p_.tokens_per_s_per_gpu), "tokens/s/GPU");
    out_ += "</div>\n";
  }

  void candidate(const std::string& mark, const plan::Candidate& c, const char* row_class) {
    const auto& p = c.prediction;
    const auto& tightest = tightest_rank(p);
    add("<tr class=\"{}\"><td>{}</td><td class=\"text\">{}</td><td>{}</td><td>{:.1f}</td><td>{}</td><td>{}</td>"
        "<td>{}</td><td class=\"{}\">{}</td></tr>\n",
        row_class, mark, escaped(c.label), ms(p.step_ns), p.tflops_per_gpu, gibibytes(tightest.walk.peak_allocated),
        gibibytes(tightest.walk.peak_reserved), gibibytes(spare(p, tightest)), p.fits ? "good" : "bad",
        p.fits ? "fits" : "does not fit");
  }

  void alternatives(const plan::Plan& plan) {
    add("<h2>Plan</h2>\n");
    for (const auto& reason : plan.why) add("<p>{}</p>\n", escaped(reason));
    out_ +=
        "<div class=\"wide\"><table><tr><th>#</th><th>candidate</th><th>step ms</th><th>TFLOP/s</th>"
        "<th>peak GiB</th><th>reserved</th><th>to spare</th><th></th></tr>\n";
    if (plan.best) candidate("best", *plan.best, "best");
    if (plan.baseline_refused.empty()) candidate("given", plan.baseline, "");
    for (std::size_t i = 0; i < plan.alternatives.size(); ++i) {
      candidate(fmt::format("{}", i + 1), plan.alternatives[i], "");
    }
    for (const auto& [r, count] : plan::rejected_by_reason(plan)) {
      add("<tr><td class=\"dim\">-</td><td class=\"text\">{}{}</td><td class=\"text dim\" colspan=\"6\">{}: "
          "{}</td></tr>\n",
          escaped(r.label), count > 1 ? fmt::format(" and {} more", count - 1) : "", escaped(r.rule),
          escaped(r.reason));
    }
    out_ += "</table></div>\n";
  }

  struct Share {
    const char* colour;
    std::string name;
    std::int64_t ns;
  };

  static std::vector<Share> shares(const timeline::Account& account) {
    std::vector<Share> out = {{"compute", "compute", account.busy - account.recompute},
                              {"recompute", "recompute", account.recompute}};
    for (const auto& cause : exposed_causes) out.push_back({cause.name, cause.name, account.*cause.member});
    out.push_back({"bubble", "bubble", account.bubble});
    out.push_back({"idle", "idle", account.idle});
    return out;
  }

  void accounts() {
    out_ += "<h2>Where each rank's step goes</h2>\n<p>";
    for (const auto& s : shares({})) key(s.colour, s.name);
    constexpr int height = 20, pitch = 26;
    add("</p>\n<svg width=\"100%\" height=\"{}\">\n", pitch * p_.ranks.size());
    for (std::size_t r = 0; r < p_.ranks.size(); ++r) {
      const int y = pitch * static_cast<int>(r);
      add("<text x=\"0\" y=\"{}\">rank {}</text>\n<svg x=\"56\" width=\"94%\">\n", y + 14, p_.ranks[r].pp_rank);
      double x = 0;
      for (const auto& s : shares(p_.ranks[r].account)) {
        if (s.ns == 0) continue;
        const double width = 100 * static_cast<double>(s.ns) / static_cast<double>(p_.step_ns);
        rect(x, width, y, height, s.colour, fmt::format("{} {} ms, {}", s.name, ms(s.ns), share(s.ns, p_.step_ns)));
        x += width;
      }
      out_ += "</svg>\n";
    }
    out_ += "</svg>\n";
  }

  void phases() {
    if (p_.ranks.size() < 2) return;
    out_ +=
        "<h2>Lost by phase, ms</h2>\n<div class=\"wide\"><table><tr><th>rank</th><th>warm-up p2p</th><th>bubble</th>"
        "<th>host</th><th>steady p2p</th><th>bubble</th><th>host</th><th>cool-down p2p</th><th>bubble</th><th>host</th>"
        "<th>slack</th></tr>\n";
    for (const auto& rank : p_.ranks) {
      add("<tr><td>{}</td>", rank.pp_rank);
      for (std::size_t phase = 0; phase < 3; ++phase) {
        const auto& split = rank.account.by_phase[phase];
        for (const auto ns : {split.p2p, split.bubble, split.host}) add("<td>{}</td>", ms(ns));
      }
      add("<td>{}</td></tr>\n", ms(rank.slack_ns));
    }
    out_ += "</table></div>\n";
  }

  void timeline() {
    // Beyond this many blocks a page becomes too heavy for browsers; the trace has no such limit.
    constexpr std::size_t most_blocks = 40'000;
    std::vector<std::vector<Block>> rows;
    std::int64_t until = p_.step_ns;
    for (int r = 0; r < run_.timeline.graph.ranks; ++r) {
      rows.push_back(nodes_.blocks(r));
      const std::size_t most = most_blocks / static_cast<std::size_t>(run_.timeline.graph.ranks);
      if (rows.back().size() > most) until = std::min(until, rows.back()[most].start);
    }
    out_ += "<h2>What the ranks do when</h2>\n<p>";
    for (const auto& [colour, name] : {std::pair("forward", "forward"),
                                       {"backward", "backward"},
                                       {"finalisation", "gradient finalisation"},
                                       {"optimizer", "optimizer"},
                                       {"p2p", "pipeline transfer in flight"},
                                       {"bubble", "waiting"}}) {
      key(colour, name);
    }
    out_ +=
        "<label class=\"dim\">width <input type=\"range\" min=\"100\" max=\"4000\" value=\"100\" "
        "oninput=\"document.getElementById('timeline').style.width=this.value+'%'\"></label></p>\n";
    if (until < p_.step_ns) add("<p class=\"dim\">The first {} ms; --trace shows all.</p>\n", ms(until));
    constexpr int row = 34;
    add("<div class=\"wide\"><svg id=\"timeline\" style=\"width:100%\" height=\"{}\">\n",
        row * static_cast<int>(rows.size()) + 18);
    for (std::size_t r = 0; r < rows.size(); ++r) timeline_row(static_cast<int>(r), rows[r], until, row);
    ticks(until, row * static_cast<int>(rows.size()));
    out_ += "</svg></div>\n";
  }

  void timeline_row(int rank, const std::vector<Block>& blocks, std::int64_t until, int row) {
    const auto at = [&](std::int64_t ns) { return 100 * static_cast<double>(ns) / static_cast<double>(until); };
    const int y = row * rank;
    rect(0, 100, y, 20, "bubble", fmt::format("rank {} waits", rank));
    for (const auto& block : blocks) {
      if (block.start >= until) break;
      timeline::Label label;
      label.rank = static_cast<std::uint16_t>(rank);
      label.instruction = block.instruction;
      label.phase = block.phase & 3U;
      const std::string op = nodes_.op(label);
      const char* colour = block.phase == 1         ? "finalisation"
                           : block.phase == 2       ? "optimizer"
                           : nodes_.backward(label) ? "backward"
                                                    : "forward";
      const double width = at(std::min(block.end, until) - block.start);
      rect(at(block.start), width, y, 20, colour,
           fmt::format("rank {} {}: {} to {} ms", rank, op, ms(block.start), ms(block.end)));
      constexpr double readable = 1.6;  // percent of the width that a label like "F 3.1" needs
      if (block.phase == 0 && width > readable) {
        add("<text class=\"on\" x=\"{:.4f}%\" y=\"{}\" dx=\"3\">{}</text>\n", at(block.start), y + 14, op.substr(2));
      }
    }
    const auto& graph = run_.timeline.graph;
    const auto& times = run_.timeline.times;
    for (const auto node : nodes_.of_rank(rank)) {
      if (graph.labels[node].kind != timeline::NodeKind::transfer || times.start[node] >= until) continue;
      rect(at(times.start[node]), at(times.end[node] - times.start[node]), y + 21, 6, "p2p",
           fmt::format("rank {} {}: {} to {} ms", rank, nodes_.what(graph.labels[node]), ms(times.start[node]),
                       ms(times.end[node])));
    }
  }

  void ticks(std::int64_t until, int y) {
    constexpr int count = 10;
    for (int i = 0; i < count; ++i) {
      add("<text x=\"{}%\" y=\"{}\">{:.0f} ms</text>\n", 100 * i / count, y + 12, ns_to_ms(until) * i / count);
    }
  }

  void memory() {
    constexpr std::array<const char*, 8> colours = {"compute", "p2p",       "backward", "optimizer",
                                                    "tp",      "recompute", "dp",       "ep"};
    out_ += "<h2>Who owns the memory at each rank's peak</h2>\n";
    // Colours go to the owners that are largest over all ranks.
    std::vector<memory::OwnerBytes> largest;
    for (const auto& rank : p_.ranks) {
      for (const auto& owner : rank.walk.peak_owners) {
        const auto same =
            std::find_if(largest.begin(), largest.end(), [&](const auto& o) { return o.owner == owner.owner; });
        if (same == largest.end()) {
          largest.push_back(owner);
        } else {
          same->bytes = std::max(same->bytes, owner.bytes);
        }
      }
    }
    std::stable_sort(largest.begin(), largest.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
    largest.resize(std::min(largest.size(), colours.size()));
    out_ += "<p>";
    for (std::size_t i = 0; i < largest.size(); ++i) key(colours[i], largest[i].owner);
    key("rest", "other owners");
    key("reserved", "reserved, not allocated");
    key("outside", "outside the allocator");
    constexpr int height = 20, pitch = 26;
    Bytes most = p_.memory_limit;
    for (const auto& rank : p_.ranks) most = std::max(most, rank.walk.peak_reserved + rank.outside_allocator);
    const auto width = [&](Bytes b) { return 100 * static_cast<double>(b.value) / static_cast<double>(most.value); };
    add("</p>\n<svg width=\"100%\" height=\"{}\">\n", pitch * p_.ranks.size() + 4);
    for (std::size_t r = 0; r < p_.ranks.size(); ++r) {
      const auto& rank = p_.ranks[r];
      const int y = pitch * static_cast<int>(r);
      add("<text x=\"0\" y=\"{}\">rank {}</text>\n<svg x=\"56\" width=\"94%\">\n", y + 14, rank.pp_rank);
      double x = 0;
      const auto piece = [&](Bytes bytes, const char* colour, const std::string& name) {
        if (bytes.value <= 0) return;
        rect(x, width(bytes), y, height, colour, fmt::format("{}: {}", name, format_bytes(bytes)));
        x += width(bytes);
      };
      Bytes rest = rank.walk.peak_allocated;
      for (std::size_t i = 0; i < largest.size(); ++i) {
        for (const auto& owner : rank.walk.peak_owners) {
          if (owner.owner != largest[i].owner) continue;
          piece(owner.bytes, colours[i], owner.owner);
          rest -= owner.bytes;
        }
      }
      piece(rest, "rest", "other owners");
      piece(rank.walk.peak_reserved - rank.walk.peak_allocated, "reserved", "reserved, not allocated");
      piece(rank.outside_allocator, "outside", "outside the allocator");
      out_ += "</svg>\n";
    }
    add("<svg x=\"56\" width=\"94%\"><line x1=\"{0:.4f}%\" x2=\"{0:.4f}%\" y1=\"0\" y2=\"100%\" stroke=\"var(--bad)\" "
        "stroke-dasharray=\"3 2\"><title>limit less margin: {1}</title></line></svg>\n</svg>\n",
        width(p_.memory_limit - p_.memory_margin), format_bytes(p_.memory_limit - p_.memory_margin));
    out_ +=
        "<div class=\"wide\"><table><tr><th>rank</th><th>static</th><th>peak allocated</th><th>at</th><th>reserved</th>"
        "<th>outside</th><th>to spare</th></tr>\n";
    for (const auto& rank : p_.ranks) {
      add("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n", rank.pp_rank,
          format_bytes(rank.walk.static_bytes), format_bytes(rank.walk.peak_allocated), escaped(rank.walk.peak_at),
          format_bytes(rank.walk.peak_reserved), format_bytes(rank.outside_allocator),
          gibibytes(spare(p_, rank)) + " GiB");
    }
    out_ += "</table></div>\n";
    const std::string room = pressure_text(p_);
    if (!room.empty()) add("<pre>{}\n{}</pre>\n", escaped(room), escaped(fragmentation_text(tightest_rank(p_))));
  }

  void boundaries() {
    if (p_.boundaries.empty()) return;
    out_ +=
        "<h2>Pipeline transfers</h2>\n<div class=\"wide\"><table><tr><th>boundary</th><th>direction</th>"
        "<th>transfers</th><th>each</th><th>exposed ms</th>"
        "<th>warm-up</th><th>steady</th><th>cool-down</th><th>longest wait</th><th>ms</th></tr>\n";
    for (const auto& b : p_.boundaries) {
      add("<tr><td>{} → {}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>", b.from, b.to,
          b.forward ? "forward" : "backward", b.transfers, format_bytes(b.bytes), ms(b.exposed));
      for (std::size_t phase = 0; phase < 3; ++phase) add("<td>{}</td>", ms(exposed_in(b, phase)));
      add("<td>{}</td><td>{}</td></tr>\n", escaped(b.longest_wait), ms(b.longest));
    }
    out_ += "</table></div>\n";
  }

  void critical_path() {
    if (p_.critical_path.empty()) return;
    out_ += "<h2>Critical path</h2>\n<table><tr><th>because</th><th>ms</th><th>steps</th></tr>\n";
    for (const auto& s : critical_shares(p_)) {
      add("<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n", escaped(timeline::name(s.why)), ms(s.ns), s.steps);
    }
    out_ += "</table>\n";
  }

  void levers() {
    if (p_.levers.empty()) return;
    out_ +=
        "<h2>What would shorten the step</h2>\n<table><tr><th>change, simulated again</th><th>gain ms</th>"
        "<th>of the step</th><th>on the critical path, ms</th></tr>\n";
    for (const auto& lever : p_.levers) {
      add("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n", escaped(lever.what), ms(lever.gain_ns),
          share(lever.gain_ns, p_.step_ns), ms(lever.on_path_ns));
    }
    out_ += "</table>\n";
  }

  void sources() {
    if (!p_.time_sources.empty()) {
      out_ += "<h2>Where the times come from</h2>\n<table><tr><th>kernels</th><th>source</th></tr>\n";
      for (const auto& [family, source] : p_.time_sources) {
        add("<tr><td>{}</td><td class=\"text\">{}</td></tr>\n", escaped(family), escaped(source));
      }
      out_ += "</table>\n";
    }
    if (p_.notes.empty()) return;
    out_ += "<h2>Notes</h2>\n<ul>\n";
    for (const auto& note : p_.notes) add("<li>{}</li>\n", escaped(note));
    out_ += "</ul>\n";
  }

  const predict::Prediction& p_;
  const predict::Run& run_;
  Nodes nodes_;
  std::string out_;
};

}  // namespace

std::string html(const predict::Prediction& prediction, const predict::Run& run, const plan::Plan* plan) {
  return Page(prediction, run).text(plan);
}

}  // namespace pipewright::report
