// One pass over a rank's program in host order: allocates and frees every tensor of every piece in a heap (walk.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "heap.hpp"
#include "offload.hpp"

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
  std::uint32_t border = none;       ///< between pieces: the activation in forward, its gradient in backward
  bool turned = false;               ///< backward has begun
  std::vector<std::uint32_t> saved;  ///< blocks of every piece's tensors, piece after piece
};

/// The walk's own tensors; their owners follow the model's.
enum class Own : std::uint32_t { received_input, received_gradient, placeholder, count };
constexpr std::array<const char*, static_cast<std::size_t>(Own::count)> own_names = {
    "pipeline receive", "pipeline receive gradient", "deallocated outputs"};

class Walker {
 public:
  Walker(const Stages& stages, const schedule::Program& program, const offload::Plan& plan, int rank, bool asynchronous,
         const Listener& listener)
      : stages_(stages),
        index_(rank),
        rank_(stages.ranks.at(static_cast<std::size_t>(rank))),
        program_(program.ranks.at(static_cast<std::size_t>(rank))),
        config_(program.config),
        interleaved_(program.config.chunks.has_value()),
        heap_(stages.owners.size() + own_names.size(), asynchronous, listener),
        offload_(plan, stages, heap_),
        modules_(rank_.chunks.size(), Variable(heap_)),
        flights_(rank_.chunks.size() * static_cast<std::size_t>(config_.microbatches)) {
    for (const auto& chunk : rank_.chunks) {
      auto& offsets = offsets_.emplace_back(1, 0);
      for (const auto piece : chunk.pieces) offsets.push_back(offsets.back() + stages_.pieces[piece].tensors.size());
    }
    forwards_ = static_cast<int>(flights_.size());
    steady_ = forwards_ - program_.warmup;
  }

  void start() {
    std::vector<std::uint32_t> blocks(rank_.construction.tensors.size(), none);
    run(rank_.construction.forward, rank_.construction, -1, 0, blocks.data());
  }
  void step(bool first = false);
  void first_step() {
    hold(rank_.since_first_step);
    step(true);
    hold(rank_.optimizer_state);
  }
  /// From process start to the begin of a step in which the optimizer's state exists.
  void reach_second_step() {
    start();
    first_step();
    heap_.begin_step();
  }
  Heap& heap() { return heap_; }

  /// Remember what happens at this event.
  void watch(std::int64_t event) {
    watched_ = event;
    heap_.remember_owners_at(event);
  }
  std::string place, kernel;                    ///< of the watched event
  std::vector<std::int64_t> after_instruction;  ///< live bytes

 private:
  std::uint32_t own(Own which) const {
    return static_cast<std::uint32_t>(stages_.owners.size()) + static_cast<std::uint32_t>(which);
  }
  Flight& flight(int microbatch, int chunk) {
    return flights_[static_cast<std::size_t>(microbatch) * rank_.chunks.size() + static_cast<std::size_t>(chunk)];
  }
  void hold(const std::vector<model::Tensor>& tensors) {
    for (const auto& tensor : tensors) heap_.allocate(tensor);
  }
  bool cool_down() const { return forwards_done_ == forwards_ && backwards_done_ >= steady_; }

  const Piece& piece(int chunk, std::size_t index) const {
    return stages_.pieces[rank_.chunks[static_cast<std::size_t>(chunk)].pieces[index]];
  }
  std::uint32_t* blocks(Flight& f, int chunk, std::size_t index) const {
    return f.saved.data() + offsets_[static_cast<std::size_t>(chunk)][index];
  }
  void begin_forward(int microbatch, int chunk);
  void end_forward(Flight& flight);
  void forward(int microbatch, int chunk);
  void begin_backward(Flight& flight);
  static void turn_border(Flight& flight, const std::uint32_t* blocks);
  void end_backward(Flight& flight);
  void backward(int microbatch, int chunk);
  void defer(int chunk, std::size_t index, const std::uint32_t* blocks);
  std::size_t piece_of(const Instruction& instruction) const;
  void node(const Instruction& instruction);
  void end_combined(const Instruction& begin);
  void deallocate(Flight& flight);
  void shrink(Flight& flight);
  void end_iteration();
  void post(const Instruction& instruction);
  void wait(const Part& part);
  void run(const std::vector<Step>& steps, const Piece& piece, int layer, int microbatch, std::uint32_t* blocks);
  void offload_hook() {
    offload_.hook([&](const offload::Unit& unit) {
      return flight(unit.microbatch, unit.chunk).saved.data() +
             offsets_[static_cast<std::size_t>(unit.chunk)][unit.position];
    });
  }

  const Stages& stages_;
  const int index_;
  const model::Rank& rank_;
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
  std::vector<std::pair<std::uint32_t, std::vector<std::uint32_t>>> deferred_;  ///< piece, its blocks
  int forwards_ = 0, steady_ = 0, forwards_done_ = 0, backwards_done_ = 0;
  std::int64_t watched_ = -1;
};

}  // namespace pipewright::memory
