// The recipe "add a schedule" (CONTRIBUTING.md) followed with one that Megatron does not have: all forwards, then all
// backwards. It is written as without_interleaving.cpp is, and both engines' graph and the walk over memory take it.
#include <doctest/doctest.h>

#include "../on_h200.hpp"
#include "host_order.hpp"
#include "pipewright/memory.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/io.hpp"
#include "pipewright/timeline.hpp"

namespace new_schedule_test {

using namespace pipewright;

namespace {

using Type = schedule::Part::Type;

void forwards_then_backwards(const schedule::Config& config, int rank, schedule::RankProgram& program) {
  const schedule::Place place{rank, config.stages, 1};
  schedule::Host host(config, place, program);
  const auto with_previous = [&](const schedule::Transfers& what) {
    if (!place.first_rank()) host.synchronous(what);
  };
  const auto with_next = [&](const schedule::Transfers& what) {
    if (!place.last_rank()) host.synchronous(what);
  };
  program.warmup = config.microbatches;
  host.disable_grad_sync();
  for (int i = 0; i < config.microbatches; ++i) {
    with_previous({.recv_prev = schedule::Part(Type::recv_prev, i, 0)});
    host.forward({i, 0});
    with_next({.send_next = schedule::Part(Type::send_next, i, 0)});
    host.deallocate({i, 0});
  }
  for (int i = 0; i < config.microbatches; ++i) {
    if (i == config.microbatches - 1) host.enable_grad_sync();
    with_next({.recv_next = schedule::Part(Type::recv_next, i, 0)});
    host.backward({i, 0});
    with_previous({.send_prev = schedule::Part(Type::send_prev, i, 0)});
  }
}

schedule::Program new_schedule(const scenario::Scenario& s) {
  const auto config = schedule::config_of(s, true);
  schedule::Program program{config, std::vector<schedule::RankProgram>(static_cast<std::size_t>(config.stages))};
  for (int rank = 0; rank < config.stages; ++rank)
    forwards_then_backwards(config, rank, program.ranks[static_cast<std::size_t>(rank)]);
  return program;
}

scenario::Scenario case_with(int microbatches) {
  auto s = scenario::read(std::string(SOURCE_ROOT) + "/tests/measured/a_pp4_m8.yaml");
  scenario::set(s, "global_batch_size=" + std::to_string(microbatches * s.settings.micro_batch_size));
  return s;
}

std::int64_t peak(const scenario::Scenario& s, const schedule::Program& program, int rank) {
  return memory::walk(test::build(s), program, s, rank).peak_allocated.value;
}

}  // namespace

TEST_CASE("a schedule that does not exist: the exact engine runs it, its bubble is that of 1F1B") {
  const profile::Profiles profiles({profile::load(std::string(SOURCE_ROOT) + "/profiles/h200-sxm.json", {"test", 0})});
  const auto s = case_with(8);
  const auto stages = test::build(s);
  const auto usual = timeline::simulate(s, stages, schedule::build(schedule::config_of(s, true)), profiles);
  const auto other = timeline::simulate(s, stages, new_schedule(s), profiles);
  REQUIRE(other.ranks.size() == 4);
  // Both have p - 1 idle slots; they differ in which transfers are exposed and in clocks.
  CHECK(static_cast<double>(other.forward_backward) ==
        doctest::Approx(static_cast<double>(usual.forward_backward)).epsilon(0.05));
  CHECK(other.forward_backward != usual.forward_backward);
}

TEST_CASE("a schedule that does not exist: every microbatch is held until its backward") {
  // Of 1F1B's last rank one microbatch is alive, here all: each adds the same.
  const auto last = [](int microbatches) {
    const auto s = case_with(microbatches);
    return peak(s, new_schedule(s), 3);
  };
  const auto four = last(4), six = last(6), eight = last(8);
  CHECK(six - four > 0);
  CHECK(eight - six == six - four);
  const auto s = case_with(8);
  const auto usual = peak(s, schedule::build(schedule::config_of(s, true)), 3);
  CHECK(eight - usual == doctest::Approx(static_cast<double>(7 * (six - four) / 2)).epsilon(0.1));
}

}  // namespace new_schedule_test
