// 1F1B with one chunk a rank (schedules.py:2120-2482). Every P2P call is synchronous.
//
//   rank 0   F F F F B F B F B   B   B   B
//   rank 1     F F F B F B F B F B   B   B
//   rank 2       F F B F B F B F B F B   B      (p = 4, m = 6)
//   rank 3         F B F B F B F B F B F B
//           warm-up | steady         | cool-down
#include "host_order.hpp"
#include "rank.hpp"

namespace pipewright::schedule {
namespace {

using Type = Part::Type;

class WithoutInterleaving {
 public:
  WithoutInterleaving(const Config& config, int rank, RankProgram& program)
      : config_(config),
        place_{rank, config.stages, 1},
        warmup_(warmup(config, rank)),
        steady_(config.microbatches - warmup_),
        host_(config, place_, program) {}

  void run() {
    host_.disable_grad_sync();
    warm_up();
    if (steady_ > 0) with_previous({.recv_prev = Part(Type::recv_prev, warmup_, 0)});
    steady();
    cool_down();
    if (host_.grad_sync_disabled()) {
      host_.enable_grad_sync();
      if (config_.align_grad_reduce) host_.grad_sync(0);
    }
  }

 private:
  void warm_up() {
    for (int i = 0; i < warmup_; ++i) {
      with_previous({.recv_prev = Part(Type::recv_prev, i, 0)});
      host_.forward({i, 0});
      with_next({.send_next = Part(Type::send_next, i, 0)});
      host_.deallocate({i, 0});
    }
  }

  void steady() {
    for (int i = 0; i < steady_; ++i) {
      const bool last = i == steady_ - 1;
      const int f = i + warmup_;
      host_.forward({f, 0});
      with_next({.send_next = Part(Type::send_next, f, 0), .recv_next = Part(Type::recv_next, i, 0)});
      host_.deallocate({f, 0});
      if (last && warmup_ == 0) enable_grad_sync_for_last_backward();
      host_.backward({i, 0});
      Transfers transfers{.send_prev = Part(Type::send_prev, i, 0)};
      if (!last) transfers.recv_prev = Part(Type::recv_prev, f + 1, 0);
      with_previous(transfers);
    }
  }

  void cool_down() {
    for (int i = steady_; i < config_.microbatches; ++i) {
      if (i == config_.microbatches - 1) enable_grad_sync_for_last_backward();
      with_next({.recv_next = Part(Type::recv_next, i, 0)});
      host_.backward({i, 0});
      with_previous({.send_prev = Part(Type::send_prev, i, 0)});
    }
  }

  /// With grad_sync_func the other stages reduce gradients after the pipeline has drained, in their bubble.
  void enable_grad_sync_for_last_backward() {
    if (!config_.align_grad_reduce || place_.first_rank()) host_.enable_grad_sync();
  }

  void with_previous(const Transfers& transfers) {
    if (!place_.first_rank()) host_.synchronous(transfers);
  }
  void with_next(const Transfers& transfers) {
    if (!place_.last_rank()) host_.synchronous(transfers);
  }

  const Config& config_;
  Place place_;
  int warmup_, steady_;
  Host host_;
};

}  // namespace

void without_interleaving(const Config& config, int rank, RankProgram& program) {
  WithoutInterleaving(config, rank, program).run();
}

}  // namespace pipewright::schedule
