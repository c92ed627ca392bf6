// Interleaved 1F1B (schedules.py:992-2085): warm-up, steady, cool-down over virtual microbatches, with the waits where
// Megatron has them. Three ways to transfer:
//   synchronous            F B S[both directions]
//   overlap_p2p_comm       steady:  W rp, F, A[sn rp], W sn, W rn, B, A[sp rn], W sp of the iteration before;
//                          warm-up and cool-down stay synchronous
//   ... warmup_flush       asynchronous there too, receives posted before the compute op (but not on the leading rank)
#include <algorithm>
#include <deque>

#include "combined.hpp"
#include "host_order.hpp"
#include "rank.hpp"

namespace pipewright::schedule {
namespace {

using Type = Part::Type;

class WithInterleaving {
 public:
  WithInterleaving(const Config& config, int rank, const Table& table, RankProgram& program)
      : config_(config),
        table_(table),
        place_{rank, config.stages, table.chunks()},
        total_(table.total()),
        warmup_(warmup(config, rank)),
        received_inputs_(static_cast<std::size_t>(table.chunks())),
        received_gradients_(static_cast<std::size_t>(table.chunks())),
        synchronized_(static_cast<std::size_t>(table.chunks())),
        host_(config, place_, program),
        combined_(config, place_, host_) {}

  void run() {
    host_.disable_grad_sync();
    if (config_.align_param_gather)
      for (int chunk = 0; chunk < std::min(2, place_.chunks); ++chunk) host_.param_sync(chunk);
    if (!place_.first_rank()) host_.synchronous({.recv_prev = input_of(0)});
    for (int k = 0; k < warmup_; ++k) warm_up(k);
    for (int k = 0; k < total_ - warmup_; ++k) steady(k);
    deallocate_last_output();
    cool_down();
    synchronize_remaining_gradients();
  }

 private:
  // ---- Phases

  void warm_up(int k) {
    const Op op = table_.at(k, Pass::forward);
    if (config_.warmup_flush && k != 0 && !place_.first_stage(op)) wait_first(pending_inputs_);
    const auto input = k == total_ - 1 ? std::nullopt : next_input(k);
    const bool prefetch = config_.warmup_flush && !place_.first_rank();
    if (prefetch) post_forward({}, input);

    compute(k, {});

    const bool steady_follows = k == warmup_ - 1 && warmup_ < total_;
    const auto output = output_of(op);
    if (config_.warmup_flush) {
      send_forward(output, prefetch ? std::nullopt : input);
      deallocate_last_output();
    } else {
      Transfers transfers{.send_next = output, .recv_prev = input};
      if (steady_follows && !config_.overlap_p2p) transfers.recv_next = first_gradient();
      host_.synchronous(transfers);
      deallocate_last_output();
    }
    if (steady_follows && config_.overlap_p2p) post_backward({}, first_gradient());
  }

  void steady(int k) {
    const int f = k + warmup_;
    if (config_.overlap_p2p) {
      compute(
          f, k,
          {.pre_forward = [this, f] { pre_forward(f); },
           .pre_backward = [this, k] { pre_backward(k); },
           .post_forward = [this, f] { send_forward(output_of(table_.at(f, Pass::forward)), steady_input(f)); },
           .post_backward = [this, k] { send_backward(gradient_of(table_.at(k, Pass::backward)), next_gradient(k)); }});
      return;
    }
    compute(f, k);
    host_.synchronous({.send_next = output_of(table_.at(f, Pass::forward)),
                       .recv_prev = steady_input(f),
                       .send_prev = gradient_of(table_.at(k, Pass::backward)),
                       .recv_next = next_gradient(k)});
    deallocate_last_output();
  }

  void cool_down() {
    if (warmup_ == total_ && !place_.last_rank()) host_.synchronous({.recv_next = first_gradient()});
    for (int k = total_ - warmup_; k < total_; ++k) {
      const Op op = table_.at(k, Pass::backward);
      if (k != 0 && !place_.last_stage(op)) wait_first(pending_gradients_);
      const auto gradient = k == total_ - 1 ? std::nullopt : next_gradient(k);
      const bool prefetch = config_.warmup_flush && !place_.last_rank();
      if (prefetch) post_backward({}, gradient);

      compute({}, k);

      if (config_.warmup_flush)
        send_backward(gradient_of(op), prefetch ? std::nullopt : gradient);
      else
        host_.synchronous({.send_prev = gradient_of(op), .recv_next = gradient});
    }
    if (backward_send_) host_.wait(*backward_send_);
  }

  // ---- Compute: one call each, or the combined call of expert-parallel overlap

  void compute(std::optional<int> f, std::optional<int> b, const Callbacks& callbacks = {}) {
    if (config_.ep_overlap) {
      if (f) before_forward(*f);
      if (b) before_backward(*b);
      combined_.run(f ? std::optional(table_.at(*f, Pass::forward)) : std::nullopt,
                    b ? std::optional(table_.at(*b, Pass::backward)) : std::nullopt, callbacks);
      if (f) last_output_ = table_.at(*f, Pass::forward);
      if (b) after_backward(*b);
      return;
    }
    if (f) {
      if (callbacks.pre_forward) callbacks.pre_forward();
      before_forward(*f);
      host_.forward(table_.at(*f, Pass::forward));
      last_output_ = table_.at(*f, Pass::forward);
      if (callbacks.post_forward) callbacks.post_forward();
    }
    if (b) {
      if (callbacks.pre_backward) callbacks.pre_backward();
      before_backward(*b);
      host_.backward(table_.at(*b, Pass::backward));
      after_backward(*b);
      if (callbacks.post_backward) callbacks.post_backward();
    }
  }

  // ---- Waits and asynchronous transfers around them

  void pre_forward(int f) {
    if (!place_.first_stage(table_.at(f, Pass::forward))) wait_first(pending_inputs_);
    deallocate_last_output();  // of the iteration before
  }

  void pre_backward(int b) {
    if (!place_.last_stage(table_.at(b, Pass::backward))) wait_first(pending_gradients_);
  }

  void post_forward(std::optional<Part> output, std::optional<Part> input) {
    host_.asynchronous({.send_next = output, .recv_prev = input});
    if (input) pending_inputs_.push_back(*input);
  }

  void post_backward(std::optional<Part> gradient_sent, std::optional<Part> gradient) {
    host_.asynchronous({.send_prev = gradient_sent, .recv_next = gradient});
    if (gradient) pending_gradients_.push_back(*gradient);
  }

  void send_forward(std::optional<Part> output, std::optional<Part> input) {
    post_forward(output, input);
    if (forward_send_) host_.wait(*forward_send_);
    forward_send_ = output;
    // isend copies later: the output must not be freed under it (schedules.py:1657,1784).
    if (forward_send_ && config_.deallocate_outputs && config_.from_0_18) {
      host_.wait(*forward_send_);
      forward_send_.reset();
    }
  }

  void send_backward(std::optional<Part> gradient_sent, std::optional<Part> gradient) {
    post_backward(gradient_sent, gradient);
    if (backward_send_) host_.wait(*backward_send_);
    backward_send_ = gradient_sent;
  }

  /// Handles are waited for in the order of their receives; nothing pending: the tensor came with a synchronous call.
  void wait_first(std::deque<Part>& pending) {
    if (pending.empty()) return;
    host_.wait(pending.front());
    pending.pop_front();
  }

  void deallocate_last_output() {
    if (last_output_) host_.deallocate(*last_output_);
    last_output_.reset();
  }

  // ---- What is sent and received

  std::optional<Part> output_of(Op op) const {
    if (place_.last_stage(op)) return std::nullopt;
    return Part(Type::send_next, op.microbatch, op.chunk);
  }
  std::optional<Part> gradient_of(Op op) const {
    if (place_.first_stage(op)) return std::nullopt;
    return Part(Type::send_prev, op.microbatch, op.chunk);
  }

  /// Tensors of a chunk come in the order of its microbatches.
  Part input_of(int chunk) { return {Type::recv_prev, received_inputs_[static_cast<std::size_t>(chunk)]++, chunk}; }
  Part output_gradient_of(int chunk) {
    return {Type::recv_next, received_gradients_[static_cast<std::size_t>(chunk)]++, chunk};
  }

  std::optional<Part> next_input(int k) {
    const auto chunk = receiving_chunk(k, Pass::forward);
    return chunk ? std::optional(input_of(*chunk)) : std::nullopt;
  }
  /// The last steady iteration has nothing left to receive.
  std::optional<Part> steady_input(int f) { return f == total_ - 1 ? std::nullopt : next_input(f); }
  std::optional<Part> next_gradient(int k) {
    const auto chunk = receiving_chunk(k, Pass::backward);
    return chunk ? std::optional(output_gradient_of(*chunk)) : std::nullopt;
  }
  std::optional<Part> first_gradient() {
    return place_.last_rank() ? std::nullopt : std::optional(output_gradient_of(place_.chunks - 1));
  }

  /// schedules.py:1258-1305, recv_tensor_from_previous_stage: the chunk that iteration k receives a tensor for. The
  /// leading rank (first in forward, last in backward) runs p - 1 iterations ahead of the ending one that feeds it, and
  /// files what it gets under the next chunk; nothing comes out of the last chunk of the model.
  std::optional<int> receiving_chunk(int k, Pass pass) const {
    const bool forward = pass == Pass::forward;
    const bool leading = forward ? place_.first_rank() : place_.last_rank();
    if (!leading) return table_.at(k + 1, pass).chunk;
    if (k < place_.stages - 1) return std::nullopt;
    const int made = table_.at(k - (place_.stages - 1), pass).chunk;
    if (made == (forward ? place_.chunks - 1 : 0)) return std::nullopt;
    return forward ? made + 1 : made - 1;
  }

  // ---- Data-parallel hooks; aligned ones are skewed by the rank, so that all stages launch at the same time

  void before_forward(int f) {
    if (!config_.align_param_gather || f + place_.rank >= total_) return;
    const Op op = table_.at(f + place_.rank, Pass::forward);
    const int next = op.chunk + 1;
    if (op.microbatch == 0 && 1 < next && next < place_.chunks) host_.param_sync(next);
  }

  void before_backward(int b) {
    const Op op = table_.at(b, Pass::backward);
    if (config_.align_grad_reduce || op.microbatch != config_.microbatches - 1) return;
    host_.enable_grad_sync();
    synchronized_[static_cast<std::size_t>(op.chunk)] = true;
  }

  void after_backward(int b) {
    // Until 0.17 the combined call skipped this for chunk 0, taken for "no chunk" (combined_1f1b.py:234 there).
    if (config_.ep_overlap && !config_.from_0_18 && table_.at(b, Pass::backward).chunk == 0) return;
    if (config_.align_grad_reduce && b >= place_.rank) {
      const Op op = table_.at(b - place_.rank, Pass::backward);
      if (op.microbatch == config_.microbatches - 1) {
        host_.enable_grad_sync();
        host_.grad_sync(op.chunk);
        synchronized_[static_cast<std::size_t>(op.chunk)] = true;
      }
    }
    host_.disable_grad_sync();
  }

  void synchronize_remaining_gradients() {
    host_.enable_grad_sync();
    if (!config_.align_grad_reduce) return;
    for (int chunk = 0; chunk < place_.chunks; ++chunk)
      if (!synchronized_[static_cast<std::size_t>(chunk)]) host_.grad_sync(chunk);
  }

  const Config& config_;
  const Table& table_;
  Place place_;
  int total_, warmup_;
  std::vector<int> received_inputs_, received_gradients_;  ///< by chunk
  std::vector<bool> synchronized_;                         ///< by chunk: gradients reduced
  std::deque<Part> pending_inputs_, pending_gradients_;    ///< asynchronous receives not waited for yet
  std::optional<Part> forward_send_, backward_send_;       ///< the last asynchronous send, not waited for yet
  std::optional<Op> last_output_;                          ///< not deallocated yet
  Host host_;
  CombinedCall combined_;
};

}  // namespace

void with_interleaving(const Config& config, int rank, const Table& table, RankProgram& program) {
  WithInterleaving(config, rank, table, program).run();
}

}  // namespace pipewright::schedule
