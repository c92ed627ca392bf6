// One pass over a rank's program in host order: allocates and frees every tensor of every piece in a heap (walk.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "heap.hpp"
#include "offload_memory.hpp"
#include "pipewright/follow.hpp"
#include "rounds.hpp"

namespace pipewright::memory {

using model::Piece;
using model::Stages;
using model::Step;
using schedule::Instruction;
using schedule::Kind;
using schedule::Part;

/// One microbatch of one chunk between its forward and its backward.
struct Flight {
  std::uint32_t input = none, output = none, placeholder = none, gradient = none, input_gradient = none;
  std::uint32_t batch = none;        ///< from the data loader
  std::uint32_t border = none;       ///< between pieces: the activation in forward, its gradient in backward
  bool turned = false;               ///< backward has begun
  std::vector<std::uint32_t> saved;  ///< blocks of every piece's tensors, piece after piece
};

/// The walk's own tensors; their owners follow the model's.
enum class Own : std::uint32_t { received_input, received_gradient, placeholder, batch, count };
constexpr std::array<const char*, static_cast<std::size_t>(Own::count)> own_names = {
    "pipeline receive", "pipeline receive gradient", "deallocated outputs", "data loader's attention mask"};

/// How many rows of routing a walk has: their mean, drawn ones, or the mean with drawn ones told beside it.
enum class Rows { mean, drawn, both };
/// Processes of a stage that are replayed: one with the mean of all rows, whose peak is told, and where the routing
/// decides how many rows a rank has, one with drawn ones; what is reserved is told by the one that reserves more. More
/// of those, or more steps, reserve a little more (93 ranks of recorded runs: 1.4 % off in the mean with one, 1.3 with
/// two, 1.1 with four over eight steps) and take as long again.
std::vector<Rows> processes(const Stages& stages, int pp_rank);

class Walker : public model::Visitor {
 public:
  Walker(const Stages& stages, const schedule::Program& program, const offload::Plan& plan, int rank, bool asynchronous,
         const Listener& listener, Rows rows = Rows::mean);

  void start() {
    std::vector<std::uint32_t> blocks(rank_.construction.tensors.size(), none);
    run(rank_.construction.forward, rank_.construction, -1, 0, blocks.data());
    if (rank_.empties_cache) heap_.empty_cache();
    blocks.clear();
    for (const auto& tensor : rank_.until_first_step) blocks.push_back(heap_.allocate(tensor));
    for (const auto block : blocks) heap_.drop(block);
  }
  void step(bool first = false);
  void first_step() {
    hold(rank_.since_first_step);
    step(true);
  }
  /// From process start to the begin of a step in which the optimizer's state exists; with CUDA graphs on through a
  /// step without and the capture. `started` is called before the first step, `with_state` before the second one.
  void reach_second_step(const std::function<void()>& started = {}, const std::function<void()>& with_state = {}) {
    if (eager_) {
      eager_->reach_second_step(started, with_state);
      eager_->holds_gradients_ = !stages_.full_iteration_graph;  // zero_grad comes after the capture of single modules
      eager_->step();
      for (auto& module : eager_->modules_) module.clear();  // the next forward lets go of its last input
      in_eager_ = false;
      heap_.empty_cache();
      heap_.go_on_after(eager_->heap());
      captures_ = true;
    }
    start();
    if (!eager_ && started) started();
    first_step();
    heap_.end_capture();
    if (eager_) {
      for (const auto block : std::exchange(eager_->gradients_, {})) eager_->heap_.drop(block);
      heap_.empty_cache();
      captures_ = false;
    }
    heap_.speak();
    if (!eager_ && with_state) with_state();
    heap_.begin_step();
  }
  Heap& heap() { return heap_; }
  const Heap& heap() const { return heap_; }
  /// Whether this is still in the steps before CUDA graphs are captured, which a walker of their own walks.
  bool in_eager() const { return in_eager_; }
  /// Whether CUDA graphs are being captured.
  bool captures() const { return captures_; }
  Walker& part(bool eager) { return eager ? *eager_ : *this; }

  /// Remember what happens at this event: "B 3.1", "layer 5, attention.core backward".
  struct Moment {
    std::int64_t event;
    std::string place, kernel;
    bool now = false;  ///< it happens, and its instruction is not over
  };
  static constexpr std::int64_t never = -1;
  /// `never`: none yet; who listens sets it while it happens.
  Moment& watch(std::int64_t event) {
    heap_.remember_owners_at(event);  // of the last one
    watched_event_ = event;
    return moments_.emplace_back(Moment{event, {}, {}, false});
  }
  /// Who listens: this is a moment to remember, instead of what it was.
  void notice(Moment& moment) {
    moment = {heap_.events(), {}, {}, true};
    notices_ = true;
  }
  /// Who listens: the heap remembers this.
  void remember() {
    heap_.remember();
    remembers_ = true;
  }

  /// The same of what the heap remembers.
  Moment remembered() const;  ///< precondition: there is something

  // The program, see model::Visitor.
  bool begin_forward(model::Call call);
  void forward(model::Call call, std::size_t position);
  void end_forward(model::Call call);
  bool begin_backward(model::Call call);
  void backward(model::Call call, std::size_t position);
  void defer_weight_gradient(model::Call call, std::size_t position);
  void callbacks(model::Call) { offload_hook(); }  ///< autograd's
  void end_backward(model::Call call);
  void begin_combined(const Instruction&) { in_combined_ = true; }
  void node(const Instruction& instruction, const model::NodePlace& place);
  void end_combined() { in_combined_ = false; }
  bool transfer(const Instruction& instruction, bool synchronous);
  bool wait(const Part& part);
  void deallocate(model::Call call);

  std::function<void(std::uint32_t)> on_instruction;  ///< where set: told the index of each one that is done

  /// What adds the state of whoever listens: the free memory that it keeps, and what it has for the blocks named.
  struct Beside {
    std::function<void(Likeness& state)> holes;
    std::function<void(const Heap& heap, Likeness& state)> blocks;
  };
  /// From now on rounds that only repeat are left out: the listener hears nothing of them, events are counted.
  void leave_out_repeats(const Beside& beside);

 private:
  std::uint32_t own(Own which) const {
    return static_cast<std::uint32_t>(stages_.owners.size()) + static_cast<std::uint32_t>(which);
  }
  Flight& flight(int microbatch, int chunk) {
    return flights_[static_cast<std::size_t>(microbatch) * rank_.chunks.size() + static_cast<std::size_t>(chunk)];
  }
  Flight& flight(model::Call call) { return flight(call.microbatch, call.chunk); }
  void hold(const std::vector<model::Tensor>& tensors) {
    for (const auto& tensor : tensors)
      if (tensor.home != model::Tensor::Home::cached) heap_.allocate(tensor);
  }
  bool cool_down() const { return forwards_done_ == forwards_ && backwards_done_ >= steady_; }

  const Piece& piece(int chunk, std::size_t index) const {
    return stages_.pieces[rank_.chunks[static_cast<std::size_t>(chunk)].pieces[index]];
  }
  std::uint32_t* blocks(Flight& f, int chunk, std::size_t index) const {
    return f.saved.data() + offsets_[static_cast<std::size_t>(chunk)][index];
  }
  const std::vector<int>& launches_of(const Piece& piece) const;
  double drawn_rows(const Piece& piece, int layer, int microbatch) const;
  void turn(Flight& flight);
  static void turn_border(Flight& flight, const std::uint32_t* blocks);
  void shrink(Flight& flight);
  void end_iteration();
  void update(bool first);                                   ///< the optimizer's
  bool happened(Moment& moment, std::int64_t before) const;  ///< since that event
  static std::string place(const Instruction& instruction);
  static std::string kernel(const Piece& piece, int layer, const Step* step, const Step* end);
  void run(const std::vector<Step>& steps, const Piece& piece, int layer, int microbatch, std::uint32_t* blocks);
  void run(const std::vector<Step>& steps, model::Call call, std::size_t position, std::uint32_t* blocks);
  void offload_hook() {
    offload_.hook([&](const offload::Unit& unit) {
      return flight(unit.microbatch, unit.chunk).saved.data() +
             offsets_[static_cast<std::size_t>(unit.chunk)][unit.position];
    });
  }

  std::size_t go_on_from(std::size_t instruction);
  std::vector<std::int64_t> state(std::size_t round) const;
  void rename_flights(std::size_t round, int shift);

  std::unique_ptr<Walker> eager_;
  bool in_eager_ = false, captures_ = false;
  const Stages& stages_;
  const int index_;
  const Rows rows_;
  const model::Rank& rank_;
  const schedule::Program& whole_;
  const schedule::RankProgram& program_;
  const schedule::Config& config_;
  const bool interleaved_;
  Heap heap_;
  Offload offload_;
  /// input_tensor, output_tensor, input_tensor_grad, output_tensor_grad of the schedule function.
  Variable input_{heap_}, output_{heap_}, input_gradient_{heap_}, output_gradient_{heap_};
  Variable iteration_gradient_{heap_};  ///< of a steady iteration's own frame
  Variable first_gradient_{heap_}, popped_input_{heap_}, popped_gradient_{heap_};
  std::vector<Variable> modules_;  ///< by chunk: what set_input_tensor was last given
  std::vector<std::vector<std::size_t>> offsets_;
  std::vector<Flight> flights_;
  /// A weight gradient that waits for the end of the step.
  struct Deferred {
    std::uint32_t piece;
    int microbatch;
    std::vector<std::uint32_t> blocks;
  };
  std::vector<Deferred> deferred_;
  bool holds_gradients_ = false;
  std::vector<std::uint32_t> gradients_;  ///< fp32 ones of the last step, until the next begins
  bool in_combined_ = false, in_node_ = false;
  bool made_stash_ = false;  ///< the pages of a paged stash
  int steps_begun_ = 0;
  int forwards_ = 0, steady_ = 0, forwards_done_ = 0, backwards_done_ = 0;
  /// A round's begin that may come back.
  struct Begin {
    std::size_t round = 0;
    std::vector<std::int64_t> holes, state;  ///< no state: no other has had these holes yet
    std::int64_t events = 0;
    int forwards = 0, backwards = 0;
  };
  std::unique_ptr<const Rounds> rounds_;  ///< where what repeats is left out
  Beside beside_;
  std::deque<Begin> begins_;  ///< of this step
  std::deque<Moment> moments_;
  std::int64_t watched_event_ = never;
  bool remembers_ = false, notices_ = false;  ///< the allocation that is being made
  struct At {
    std::int64_t event = never;
    const Instruction* instruction = nullptr;  ///< none: the optimizer
    const Piece* piece = nullptr;
    int layer = 0;
    const Step *step = nullptr, *end = nullptr;
  };
  At remembered_step_, remembered_instruction_;
  std::vector<std::vector<int>> launches_;  ///< by piece and kernel
  std::vector<int> construction_launches_;
};

}  // namespace pipewright::memory
