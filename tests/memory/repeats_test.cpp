// Rounds of the schedule that only repeat are left out of a walk: whatever the configuration, nothing that it says
// differs from what the whole walk says.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <array>

#include "../draws.hpp"
#include "../predict/drawn.hpp"
#include "pipewright/memory.hpp"

namespace repeats_test {

using namespace pipewright;

namespace {

std::string told(const std::vector<memory::OwnerBytes>& owners) {
  std::string text;
  for (const auto& [owner, bytes] : owners) text += fmt::format(" {} {}", owner, bytes.value);
  return text;
}

std::string told(const memory::Walk& w) {
  auto text = fmt::format("{} {} {} {} {} {} at {} {}:{}; {} events, retried {}", w.static_bytes.value,
                          w.after_step.value, w.peak_allocated.value, w.peak_reserved.value, w.built.value,
                          w.graph_pool.value, w.peak_at, w.peak_piece, told(w.peak_owners), w.events, w.retried);
  if (const auto& f = w.failure)
    text += fmt::format("; fails at {} {} {}: {} {} {} {} {}:{}", f->at, f->piece, f->owner, f->requested.value,
                        f->segment.value, f->allocated.value, f->reserved.value, f->graph_pool.value, told(f->owners));
  return text;
}

std::string told(const memory::Fragmentation& f) {
  auto text =
      fmt::format("{} {} {}: {} {} {} {} {} {};{}", f.at, f.piece, f.owner, f.requested.value, f.allocated.value,
                  f.reserved.value, f.cached.value, f.largest_gap.value, f.largest_allocation.value, told(f.pinned_by));
  for (const auto& one : f.segments)
    text += fmt::format("; {} {}{}", one.bytes.value, one.free.value, told(one.owners));
  return text;
}

const memory::Listener hears_all = [](const memory::Event&) {};

}  // namespace

TEST_CASE("a walk that leaves out what repeats says to the byte what the whole walk says") {
  int walked = 0, left_out = 0, pipelines_left_out = 0;
  for (unsigned seed = 0; seed < test::draws(70); ++seed) {
    std::string text = test::drawn(seed);
    constexpr std::array confs = {"", "expandable_segments:True", "max_split_size_mb:32", "roundup_power2_divisions:4"};
    text.replace(text.find("CUDA_DEVICE_MAX_CONNECTIONS"), 0,
                 fmt::format("PYTORCH_CUDA_ALLOC_CONF: '{}', ", confs[seed % confs.size()]));
    // So many microbatches that some rounds are alike.
    const auto batch = text.find("global_batch_size: ") + std::string("global_batch_size: ").size();
    text.replace(batch, text.find(',', batch) - batch, std::to_string(6 * std::stoi(text.substr(batch))));
    CAPTURE(text);
    const auto s = test::accepted(text);
    if (!s) continue;
    const auto stages = test::build(*s);
    const auto program = schedule::build(schedule::config_of(*s, true));
    const int rank = seed % 2 == 0 ? 0 : static_cast<int>(stages.ranks.size()) - 1;
    const auto whole = memory::walk(stages, program, *s, rank, {}, hears_all);
    const auto brief = memory::walk(stages, program, *s, rank);
    CHECK(told(brief) == told(whole));
    CHECK(whole.left_out == 0);
    ++walked;
    left_out += brief.left_out > 0;
    pipelines_left_out += brief.left_out > 0 && stages.ranks.size() > 1;
    // Within less than it would like to reserve, and within less than it needs.
    for (const Bytes device : {Bytes((whole.peak_allocated.value + whole.peak_reserved.value) / 2),
                               Bytes(whole.peak_allocated.value / 50 * 49)}) {
      const auto tight = memory::walk(stages, program, *s, rank, device, hears_all);
      CHECK(told(memory::walk(stages, program, *s, rank, device)) == told(tight));
      CHECK(memory::runs_within(stages, program, *s, rank, device) == !tight.failure);
    }
    const auto why =
                   memory::explain(stages, program, *s, rank, whole.peak_reserved, whole.peak_reserved, hears_all).why,
               briefly = memory::explain(stages, program, *s, rank, whole.peak_reserved, whole.peak_reserved).why;
    CHECK(told(briefly.as_configured) == told(why.as_configured));
    CHECK(told(briefly.expandable) == told(why.expandable));
  }
  MESSAGE("left out in " << left_out << " of " << walked << " walks, " << pipelines_left_out
                         << " of them of pipelines");
  CHECK(walked > static_cast<int>(test::draws(50)));
  CHECK((left_out > walked / 10 || test::few()));
  CHECK(pipelines_left_out > 0);
}

TEST_CASE("the same with CUDA graphs, whose steps before the capture are left out, too") {
  std::size_t nth = 0;
  for (const char* name : {"llama3-70b-sft-32xh100", "qwen3-30b-a3b-pretrain-16xh100"}) {
    if (!test::taken(nth++)) continue;
    CAPTURE(name);
    const auto s = scenario::read(std::string("../../scenarios/") + name + ".yaml");
    const auto stages = test::build(s);
    const auto program = schedule::build(schedule::config_of(s, true));
    REQUIRE(stages.eager);
    CHECK(told(memory::walk(stages, program, s, 0)) == told(memory::walk(stages, program, s, 0, {}, hears_all)));
  }
}

}  // namespace repeats_test
