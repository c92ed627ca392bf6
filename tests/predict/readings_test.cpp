// What pages and traces draw adds up to what is printed: stretches of waiting to every rank's account, memory over the
// step to its peaks.
#include <doctest/doctest.h>

#include <array>
#include <map>
#include <numeric>
#include <set>

#include "pipewright/histories.hpp"
#include "pipewright/predict.hpp"
#include "pipewright/reading.hpp"
#include "pipewright/scenario/io.hpp"

namespace readings_test {

using namespace pipewright;
using timeline::Cause;

namespace {

/// With and without interleaving, recompute, FP8, data, tensor, expert and context parallelism, expert-parallel
/// overlap, offload of both kinds, several allocators.
const char* const runs[] = {"a_pp4_m8",
                            "a_pp4v2_m8",
                            "a_pp4v2_m8_nooverlap",
                            "a_pp4v2_m8_full_uniform1",
                            "t_cp2",
                            "t_fp8_delayed",
                            "b_tp2pp2v2_m8_fp8cs",
                            "a_pp2dp2v2_m8_ogr",
                            "e_base",
                            "e_ov_dw",
                            "t_e_ep2",
                            "e_off_moe_act",
                            "w_off4",
                            "t_w_off2",
                            "t_mla",
                            "a_mem_pp4v2_m8_expandable",
                            "t_off_attn",
                            "q_base"};

struct Predicted {
  scenario::Scenario scenario;
  profile::Profiles profiles;
  predict::Run run;
  predict::Prediction prediction;

  explicit Predicted(const std::string& file)
      : scenario(scenario::read(SOURCE_ROOT + file)),
        profiles(predict::profiles_of(scenario, {SOURCE_ROOT "/profiles/" + scenario.cluster.profile + ".json"})),
        prediction(predict::predict(scenario, profiles, &run)) {}
};

std::vector<std::string> files() {
  std::vector<std::string> out = {"/scenarios/llama3-70b-sft-32xh100.yaml"};
  for (const char* name : runs) out.push_back(std::string("/tests/measured/") + name + ".yaml");
  return out;
}

}  // namespace

TEST_CASE("gaps of the compute streams and their kernels are the accounts, to the nanosecond") {
  for (const auto& file : files()) {
    const Predicted p(file);
    const auto& [graph, times] = std::tie(p.run.timeline.graph, p.run.timeline.times);
    std::vector<std::array<std::int64_t, timeline::causes>> sums(p.prediction.ranks.size());
    std::vector<std::int64_t> reached(sums.size());
    for (const auto& gap : timeline::gaps(p.run.timeline, p.run.stages, p.run.program)) {
      CHECK_MESSAGE(gap.start >= reached[gap.rank], file);  // none twice, in order
      reached[gap.rank] = gap.end;
      sums[gap.rank][static_cast<std::size_t>(gap.cause)] += gap.end - gap.start;
    }
    for (std::uint32_t node = 0; node < graph.size(); ++node) {
      const auto& label = graph.labels[node];
      if (label.lane != timeline::Lane::compute || label.kind != timeline::NodeKind::kernel) continue;
      sums[label.rank][static_cast<std::size_t>(timeline::cause_of(label.purpose))] +=
          times.end[node] - times.start[node];
    }
    for (std::size_t r = 0; r < sums.size(); ++r) {
      const auto& account = p.prediction.ranks[r].account;
      const std::pair<Cause, std::int64_t> wanted[] = {
          {Cause::bubble, account.bubble}, {Cause::idle, account.idle}, {Cause::host, account.host},
          {Cause::p2p, account.p2p},       {Cause::tp, account.tp},     {Cause::cp, account.cp},
          {Cause::ep, account.ep},         {Cause::dp, account.dp},     {Cause::offload, account.offload},
          {Cause::compute, account.busy}};
      for (const auto& [cause, ns] : wanted)
        CHECK_MESSAGE(sums[r][static_cast<std::size_t>(cause)] == ns, file, " rank ", r, " ", timeline::name(cause));
      CHECK(std::accumulate(sums[r].begin(), sums[r].end(), std::int64_t{0}) == p.prediction.step_ns);
    }
  }
}

TEST_CASE("exchanges are told one by one, and add up to what every rank exposes of each kind and phase") {
  for (const auto& file : files()) {
    CAPTURE(file);
    const Predicted p(file);
    for (const auto& rank : p.prediction.ranks) {
      std::map<model::Purpose, std::int64_t> sums;
      std::array<std::int64_t, timeline::phases> by_phase{};
      std::set<std::string> names;
      for (const auto& c : rank.account.communication) {
        CHECK(names.insert(c.what + timeline::name(timeline::cause_of(c.purpose))).second);
        CHECK(c.times > 0);
        CHECK(c.exposed_in_all() <= c.busy);
        sums[c.purpose] += c.exposed_in_all();
        for (std::size_t phase = 0; phase < timeline::phases; ++phase) by_phase[phase] += c.exposed[phase];
      }
      const timeline::Account& all = rank.account;
      CHECK(sums[model::Purpose::tp] == all.tp);
      CHECK(sums[model::Purpose::cp] == all.cp);
      CHECK(sums[model::Purpose::ep] == all.ep);
      CHECK(sums[model::Purpose::dp] == all.dp);
      for (std::size_t phase = 0; phase < timeline::phases; ++phase) {
        const auto& split = all.by_phase[phase];
        CHECK(by_phase[phase] == split.tp + split.cp + split.ep + split.dp);
      }
    }
  }
}

TEST_CASE("memory over the step peaks where the walk does, and its owners and segments add up") {
  for (const auto& file : files()) {
    const Predicted p(file);
    const auto histories = predict::histories(p.prediction, p.scenario, p.profiles, p.run);
    REQUIRE(histories.size() == p.prediction.ranks.size());
    for (std::size_t r = 0; r < histories.size(); ++r) {
      const auto& walk = p.prediction.ranks[r].walk;
      const auto& history = histories[r];
      CAPTURE(file);
      CAPTURE(r);
      Bytes most, reserved;
      for (std::size_t s = 0; s < history.samples.size(); ++s) {
        Bytes sum;
        for (const auto& held : history.held) sum += held[s];
        CHECK(sum == history.samples[s].allocated);
        CHECK(history.samples[s].allocated <= history.samples[s].reserved);
        most = std::max(most, history.samples[s].allocated);
        reserved = std::max(reserved, history.samples[s].reserved);
      }
      CHECK(most == walk.peak_allocated);
      CHECK(history.samples[history.peak].allocated == most);
      if (!history.eager) CHECK(reserved <= walk.peak_reserved);
      // Reserved memory may reach its peak between two samples, for an allocation that is gone by then.
      if (!history.eager) CHECK(reserved.value >= 0.9 * static_cast<double>(walk.peak_reserved.value));
      std::map<std::string, Bytes> owners;
      for (std::size_t o = 0; o < history.owners.size(); ++o)
        if (history.held[o][history.peak].value > 0) owners[history.owners[o]] = history.held[o][history.peak];
      CHECK(owners.size() == walk.peak_owners.size());
      for (const auto& [owner, bytes] : walk.peak_owners) CHECK_MESSAGE(owners[owner] == bytes, owner);
      std::int64_t used = 0, all = 0;
      for (std::size_t s = 0; s < history.segments.size(); ++s) {
        std::int64_t inside = 0;
        for (std::size_t b = 0; b < history.segments[s].blocks.size(); ++b) {
          inside += history.segments[s].blocks[b].bytes;
          if (history.segment_owners[s][b] >= 0) used += history.segments[s].blocks[b].bytes;
        }
        CHECK(inside == history.segments[s].bytes);
        all += inside;
      }
      CHECK(used >= most.value);  // blocks that a transfer still reads are in use, though freed
      CHECK(all + walk.graph_pool.value * !history.eager == history.samples[history.peak].reserved.value);
    }
  }
}

TEST_CASE("steady state lies between warm-up and cool-down") {
  const Predicted p("/tests/measured/a_pp4v2_m8.yaml");
  for (const auto& rank : p.run.program.ranks) {
    const auto bounds = timeline::phase_bounds(rank);
    CHECK(bounds.steady > 0);
    CHECK(bounds.steady <= bounds.cooldown);
    CHECK(bounds.cooldown < rank.instructions.size());
  }
}

}  // namespace readings_test
