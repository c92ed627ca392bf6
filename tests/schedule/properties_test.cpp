// What holds for every schedule: each forward has its backward, transfers meet their other side in order, waits come
// before their use, nothing hangs, and no rank holds more chunks than the schedule's known peak.
#include <doctest/doctest.h>

#include <map>
#include <set>

#include "generate.hpp"
#include "pipewright/base.hpp"
#include "transfers.hpp"

namespace properties_test {

using namespace pipewright;
using namespace pipewright::schedule;

namespace {

using Key = std::pair<int, int>;  // microbatch, chunk

Config interleaved(int p, int v, int group, int m, bool overlap) {
  Config c;
  c.stages = p;
  c.chunks = v;
  c.group_size = group;
  c.microbatches = m;
  c.overlap_p2p = overlap;
  c.batched = !overlap;
  return c;
}

/// Calls `visit(is_forward, key)` for every chunk that a rank computes, a combined call's forward first.
template <class Visit>
void computes(const RankProgram& rank, Visit visit) {
  for (const Instruction& i : rank.instructions) {
    if (i.kind == Kind::forward || i.kind == Kind::combined) visit(true, Key(i.microbatch, i.chunk));
    if (i.kind == Kind::backward) visit(false, Key(i.microbatch, i.chunk));
    if (i.kind == Kind::combined) visit(false, Key(i.backward_microbatch, i.backward_chunk));
  }
}

struct Alive {
  int peak = 0;
  std::vector<int> by_chunk;  ///< each chunk's own maximum
};

Alive alive(const RankProgram& rank, int chunks) {
  Alive out{0, std::vector<int>(static_cast<std::size_t>(chunks))};
  std::vector<int> now(static_cast<std::size_t>(chunks));
  int all = 0;
  computes(rank, [&](bool forward, Key key) {
    const auto chunk = static_cast<std::size_t>(key.second);
    now[chunk] += forward ? 1 : -1;
    all += forward ? 1 : -1;
    out.peak = std::max(out.peak, all);
    out.by_chunk[chunk] = std::max(out.by_chunk[chunk], now[chunk]);
  });
  return out;
}

int peak_bound(const Config& c, int rank) {
  const int extra = c.ep_overlap ? 1 : 0;
  if (c.stages == 1) return std::min(c.microbatches, 1 + extra);
  if (!c.chunks) return std::min(c.microbatches, c.stages - rank);
  return std::min(c.microbatches * *c.chunks,
                  2 * (c.stages - rank - 1) + (*c.chunks - 1) * c.group_size.value_or(c.stages) + 1 + extra);
}

void each_forward_has_its_backward(const Config& c, const RankProgram& rank) {
  std::map<Key, int> state;  // 1 after forward, 2 after backward
  computes(rank, [&](bool forward, Key key) { RC_ASSERT(state[key]++ == (forward ? 0 : 1)); });
  RC_ASSERT(state.size() == static_cast<std::size_t>(c.microbatches * c.chunks.value_or(1)));
  for (const auto& [key, times] : state) RC_ASSERT(times == 2);
}

void transfers_and_waits_fit_the_computes(const RankProgram& rank) {
  using Type = Part::Type;
  std::set<Key> forwards, backwards;
  std::map<std::pair<Type, Key>, int> posted, done;
  const auto use = [&](bool forward, Key key) {
    (forward ? forwards : backwards).insert(key);
    const auto input = std::pair(forward ? Type::recv_prev : Type::recv_next, key);
    if (posted.count(input)) RC_ASSERT(done.count(input) == 1u);
    // A receive after its use would be as wrong as none: the tensor must not be posted later.
    posted[input] += 100;
  };
  for (const Instruction& i : rank.instructions) {
    RankProgram one;
    one.instructions = {i};
    computes(one, use);
    if (i.kind == Kind::p2p_sync || i.kind == Kind::p2p_async)
      for (const Part& part : i.parts) {
        const Key key(part.microbatch, part.chunk);
        if (part.type == Type::send_next) RC_ASSERT(forwards.count(key) == 1u);
        if (part.type == Type::send_prev) RC_ASSERT(backwards.count(key) == 1u);
        RC_ASSERT(++posted[std::pair(part.type, key)] == 1);
        if (i.kind == Kind::p2p_sync) ++done[std::pair(part.type, key)];
      }
    if (i.kind == Kind::wait) {
      const Part& part = i.parts.front();
      const auto id = std::pair(part.type, Key(part.microbatch, part.chunk));
      RC_ASSERT(posted.count(id) == 1u);
      RC_ASSERT(++done[id] == 1);
    }
  }
}

}  // namespace

TEST_CASE("every schedule is complete and safe") {
  CHECK(rc::check("complete and safe", [] {
    const Config c = any_config();
    RC_LOG() << c;
    const Program program = build(c);
    for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
      each_forward_has_its_backward(c, program.ranks[rank]);
      transfers_and_waits_fit_the_computes(program.ranks[rank]);
      RC_ASSERT(alive(program.ranks[rank], c.chunks.value_or(1)).peak == peak_bound(c, static_cast<int>(rank)));
    }
    RC_ASSERT(World(program).run() == "");
  }));
}

TEST_CASE("no default configuration hangs") {
  for (int p = 1; p <= 8; ++p)
    for (int v = 1; v <= 4; ++v)
      for (int m : {p, 2 * p, 5 * p})
        for (bool overlap : {false, true}) {
          if (v > 1 && p == 1) continue;
          if (v > 1 && p == 2 && !overlap) continue;  // see the next case
          if (v == 1 && overlap) continue;
          Config c = interleaved(p, v, p, m, overlap);
          if (v == 1) c.chunks.reset();
          INFO("p ", p, " v ", v, " m ", m, " overlap ", overlap);
          CHECK(World(build(c)).run() == "");
        }
}

TEST_CASE("two stages, interleaved and batched: the batches pair the wrong tensors") {
  // The reason for arguments.py:970, which wants PP > 2 without P2P overlap.
  CHECK(World(build(interleaved(2, 2, 2, 4, false))).run().find("paired with another tensor") != std::string::npos);
}

TEST_CASE("chunks in flight") {
  const struct {
    int p, v, group, m, rank, warmup, peak;
    std::vector<int> by_chunk;
  } rows[] = {
      {4, 2, 4, 16, 0, 10, 11, {8, 4}},         {4, 2, 4, 16, 3, 4, 5, {5, 1}},
      {4, 4, 4, 16, 0, 18, 19, {8, 8, 4, 4}},   {4, 4, 4, 16, 3, 12, 13, {8, 5, 4, 1}},
      {8, 4, 8, 32, 0, 38, 39, {16, 16, 8, 8}}, {8, 4, 8, 32, 7, 24, 25, {16, 9, 8, 1}},
  };
  for (const auto& row : rows)
    for (bool overlap : {false, true}) {
      const Program program = build(interleaved(row.p, row.v, row.group, row.m, overlap));
      const RankProgram& rank = program.ranks[static_cast<std::size_t>(row.rank)];
      INFO("p ", row.p, " v ", row.v, " rank ", row.rank);
      CHECK(rank.warmup == row.warmup);
      const Alive found = alive(rank, row.v);
      CHECK(found.peak == row.peak);
      CHECK(found.by_chunk == row.by_chunk);
    }
}

TEST_CASE("before 0.18 a forward send overlaps the backward") {
  Config c = interleaved(4, 2, 4, 8, true);
  const auto steady = [](const Config& config) {
    const auto words = text(build(config).ranks[0]);
    const auto first = std::find(words.begin(), words.end(), "A[sn6.0]");
    return std::vector<std::string>(first, first + 9);
  };
  using Words = std::vector<std::string>;
  CHECK(steady(c) ==
        Words{"A[sn6.0]", "Wsn6.0", "Wrn0.1", "B0.1", "A[sp0.1 rn1.1]", "F7.0", "A[sn7.0 rp4.1]", "Wsn7.0", "Wrn1.1"});
  c.from_0_18 = false;
  CHECK(steady(c) ==
        Words{"A[sn6.0]", "Wrn0.1", "B0.1", "A[sp0.1 rn1.1]", "F7.0", "A[sn7.0 rp4.1]", "Wsn6.0", "Wrn1.1", "B1.1"});
}

TEST_CASE("refused beyond the schedule functions") {
  const auto message = [](const Config& c) -> std::string {
    try {
      build(c);
      return "accepted";
    } catch (const UsageError& error) {
      return error.what();
    }
  };
  Config ep;
  ep.stages = 4;
  ep.microbatches = 8;
  ep.ep_overlap = true;
  CHECK(message(ep).find("virtual_pipeline_model_parallel_size must be specified") != std::string::npos);
  Config flush = interleaved(4, 2, 4, 8, false);
  flush.warmup_flush = true;
  CHECK(message(flush).find("only compatible with overlap_p2p_comm") != std::string::npos);
  Config both = interleaved(4, 2, 4, 8, true);
  both.batched = true;
  CHECK(message(both).find("Can not use both overlap_p2p_comm and batch_p2p_comm") != std::string::npos);
  CHECK(message(interleaved(1, 2, 1, 8, true)).find("greater than 1 with interleaved") != std::string::npos);
  Config none;
  none.microbatches = 0;
  CHECK(message(none).find("must be at least 1") != std::string::npos);
  Config huge;
  huge.stages = 1 << 20;
  huge.microbatches = 1 << 30;
  CHECK(message(huge).find("at most") != std::string::npos);
}

}  // namespace properties_test
