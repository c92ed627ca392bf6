// Replay of Megatron's fine-grained activation offload over a rank's hooks.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>

#include "hooks.hpp"

namespace pipewright::offload {

/// The settings that decide which groups move.
struct Rules {
  int pp_rank = 0, chunks = 1;
  double fraction = 1;                   ///< activation_offload_fraction
  std::int64_t delta = 0;                ///< delta_offload_bytes_across_pp_ranks
  std::optional<std::int64_t> inflight;  ///< fine_grained_offloading_max_inflight_offloads
};

class FineGrained : public Manager {
 public:
  FineGrained(const Rules& rules, Recorder& recorder) : rules_(rules), recorder_(recorder), stages_(rules.chunks) {}

  void begin_forward(int microbatch, int chunk) override;
  void hook(model::Step::Kind kind, std::uint32_t unit) override;
  void end_backward(int, int) override {}
  void end_iteration() override;
  bool learns_from(model::Step::Kind kind) const override { return kind == model::Step::Kind::offload_begin; }

 private:
  struct Group {
    int name = 0;
    Bytes bytes;
    std::uint32_t unit = 0;
    bool offload = true;
    bool on_host = false;  ///< its tensors are copies in host memory now
  };
  /// A chunk's groups for one microbatch (ChunkOffloadHandler); cached from iteration to iteration.
  struct Handler {
    std::deque<Group> groups;
    std::size_t index = 0;  ///< groups begun in this iteration
    std::vector<Group*> to_offload, to_reload, reloading;
    std::map<int, std::deque<std::uint32_t>> pending;  ///< by name

    bool has(int name, std::size_t from = 0) const;
  };

  Handler* pop_forward(int name);
  Handler* front_backward(std::optional<int> name = {}) const;
  void flush();
  void start_forward(std::uint32_t unit);
  void commit_forward(std::uint32_t unit);
  void commit_backward(std::uint32_t unit);
  void start_backward(std::uint32_t unit);
  bool moves(const Handler& handler, const Group& group) const;
  void copy_out(Handler& handler, Group& group);
  void reload(Handler& handler);
  void learned();

  const Rules rules_;
  Recorder& recorder_;
  bool warmup_ = true;
  std::vector<std::unique_ptr<Handler>> forward_;  ///< in the order of forward passes
  std::vector<Handler*> backward_;                 ///< in the order of backward passes, as learned
  std::vector<std::vector<Handler*>> stages_;      ///< of the first iteration: waiting for their place in `backward_`
  std::size_t next_forward_ = 0, next_backward_ = 0;
  Handler* current_forward_ = nullptr;
  Handler* current_backward_ = nullptr;
  std::vector<Handler*> handler_of_;  ///< by unit: the handler that autograd's nodes of a unit hold
};

}  // namespace pipewright::offload
