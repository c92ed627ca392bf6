// Why reserved memory is more than allocated memory: on a real configuration. Runs in tests/memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "../on_h200.hpp"
#include "pipewright/memory.hpp"
#include "pipewright/scenario/io.hpp"

namespace fragmentation_test {

using namespace pipewright;

namespace {

struct Case {
  scenario::Scenario scenario = scenario::read("../measured/a_pp4v2_m8.yaml");
  model::Stages stages = test::build(scenario);
  schedule::Program program = schedule::build(schedule::config_of(scenario));

  memory::Walk walk(std::optional<Bytes> device = {}) const {
    return memory::walk(stages, program, scenario, 0, device);
  }
  memory::Fragmentation fragmentation(bool expandable, Bytes device) const {
    const auto both = memory::explain(stages, program, scenario, 0, device, device).why;
    return expandable ? both.expandable : both.as_configured;
  }
};

std::int64_t sum(const std::vector<memory::OwnerBytes>& owners) {
  return std::accumulate(owners.begin(), owners.end(), std::int64_t{0},
                         [](std::int64_t s, const auto& o) { return s + o.bytes.value; });
}

constexpr Bytes roomy(std::int64_t{100} << 30);

}  // namespace

TEST_CASE("the kernel that is told is the one launched next to the allocation that is told") {
  // Userbuffers are kept: one that is used again right after an allocation is not that.
  int told = 0;
  for (const auto& [name, batch] :
       {std::pair{"llama3-70b-pretrain-64xh100", 32}, {"llama31-405b-pretrain-1024xh100", 128}}) {
    auto s = scenario::read(std::string("../../scenarios/") + name + ".yaml");
    s.settings.global_batch_size = batch;
    const auto stages = test::build(s);
    const auto program = schedule::build(schedule::config_of(s));
    std::set<std::string> next;  // owner and kernel
    for (const auto& piece : stages.pieces) {
      for (const auto* steps : {&piece.forward, &piece.backward, &piece.weight_gradient}) {
        for (auto step = steps->begin(); step != steps->end(); ++step) {
          if (step->kind != model::Step::Kind::allocate) continue;
          const auto launch = std::find_if(
              step, steps->end(), [](const model::Step& later) { return later.kind == model::Step::Kind::launch; });
          if (launch == steps->end()) continue;
          next.insert(stages.owners[piece.tensors[step->index].owner] + " before " + piece.kernels[launch->index].name);
        }
      }
    }
    for (int rank = 0; rank < static_cast<int>(stages.ranks.size()); ++rank) {
      const auto why = memory::explain(stages, program, s, rank, roomy, roomy).why;
      for (const auto* one : {&why.as_configured, &why.expandable}) {
        const auto comma = one->piece.find(", ");
        if (comma == std::string::npos) continue;
        CAPTURE(one->owner + " before " + one->piece);
        CHECK(next.contains(one->owner + " before " + one->piece.substr(comma + 2)));
        ++told;
      }
    }
  }
  CHECK(told > 10);
}

TEST_CASE("reserved memory grows because no gap is large enough, and the gaps have owners beside them") {
  const Case c;
  const auto f = c.fragmentation(false, roomy);
  CHECK(f.reserved <= c.walk().peak_reserved);
  CHECK(f.reserved.value > c.walk().peak_reserved.value - (4 << 20));  // small segments aside
  CHECK(f.requested > f.largest_gap);
  CHECK(f.cached >= f.largest_gap);
  CHECK_FALSE(f.owner.empty());
  CHECK_FALSE(f.at.empty());
  REQUIRE_FALSE(f.segments.empty());
  std::int64_t free = 0;
  for (std::size_t i = 0; i < f.segments.size(); ++i) {
    const auto& s = f.segments[i];
    CHECK(s.free.value > 0);
    CHECK(s.free.value + sum(s.owners) == s.bytes.value);
    if (i > 0) CHECK(s.free <= f.segments[i - 1].free);
    free += s.free.value;
  }
  CHECK(sum(f.pinned_by) >= free - static_cast<std::int64_t>(f.pinned_by.size() * f.segments.size()));
  CHECK(sum(f.pinned_by) <= f.cached.value);
}

TEST_CASE("what could still be had: as much as the device has left, or a gap; expandable segments give more") {
  const Case c;
  const auto plain = c.fragmentation(false, roomy), paged = c.fragmentation(true, roomy);
  CHECK(plain.largest_allocation >= plain.largest_gap);
  CHECK(plain.largest_allocation >= roomy - plain.reserved);
  CHECK(plain.largest_allocation <= roomy - plain.allocated);
  CHECK(paged.segments.empty());
  CHECK(paged.reserved <= plain.reserved);
  const auto out_of_reach = [&](bool expandable) {
    const Bytes tight = c.walk().peak_reserved;
    const auto f = c.fragmentation(expandable, tight);
    return tight - f.allocated - f.largest_allocation;
  };
  CHECK(out_of_reach(true) < out_of_reach(false));
}

TEST_CASE("who asks why memory is reserved gets the walk of who does not") {
  const Case c;
  const auto free = c.walk();
  for (const Bytes device : {roomy, free.peak_reserved - Bytes(1), free.peak_allocated - Bytes(1 << 30)}) {
    CAPTURE(device.value);
    const auto plain = c.walk(device), told = memory::explain(c.stages, c.program, c.scenario, 0, device, roomy).walk;
    CHECK(told.static_bytes == plain.static_bytes);
    CHECK(told.after_step == plain.after_step);
    CHECK(told.peak_allocated == plain.peak_allocated);
    CHECK(told.peak_reserved == plain.peak_reserved);
    CHECK(told.peak_at == plain.peak_at);
    CHECK(told.peak_piece == plain.peak_piece);
    CHECK(told.events == plain.events);
    CHECK(told.retried == plain.retried);
    REQUIRE(told.failure.has_value() == plain.failure.has_value());
    if (plain.failure) CHECK(told.failure->at == plain.failure->at);
    REQUIRE(told.peak_owners.size() == plain.peak_owners.size());
    for (std::size_t i = 0; i < plain.peak_owners.size(); ++i) {
      CHECK(told.peak_owners[i].owner == plain.peak_owners[i].owner);
      CHECK(told.peak_owners[i].bytes == plain.peak_owners[i].bytes);
    }
  }
}

TEST_CASE("the first failing allocation, and who held the memory") {
  const Case c;
  const auto peak = c.walk().peak_allocated;
  const auto w = c.walk(peak - Bytes(1 << 30));
  REQUIRE(w.failure);
  const auto& f = *w.failure;
  CHECK(f.reserved <= peak - Bytes(1 << 30));
  CHECK(f.allocated + f.segment + (f.reserved - f.allocated) > peak - Bytes(1 << 30));
  CHECK(f.requested <= f.segment);
  CHECK(f.owners.front().bytes >= f.owners.back().bytes);
  CHECK_FALSE(f.owner.empty());
}

}  // namespace fragmentation_test
