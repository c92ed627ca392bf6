// The walk: a rank's program in host order, every tensor of every piece.
//
// What keeps the tensors between the pieces alive (Megatron-LM core_r0.19.0 schedules.py; seen in recorded allocator
// events). An input is an object with a gradient attached (retain_grad); it goes when nobody names it any more:
//   input      the list input_tensors until its backward returns; the module (set_input_tensor) until the chunk's next
//              forward, so the last one lives into the next step; the variable `input_tensor` where a synchronous
//              receive or 1F1B's pop assigns it
//   its grad   the input; the variable `input_tensor_grad` until the next backward returns (1F1B, cool-down) or the
//   next
//              steady iteration ends
//   output     deallocate_pipeline_outputs: D replaces it by one element, which lives until the backward returns (1F1B:
//              until the next forward returns, as `output_tensor`); its graph names the input meanwhile
//   gradient   the list output_tensor_grads until its backward returns; the first of an overlapped schedule in
//              bwd_recv_buffer until the next post; `output_tensor_grad` of synchronous calls until the next one
//              returns; the wait handle that cool-down pops until the function returns
#include <algorithm>
#include <array>

#include "walker.hpp"

namespace pipewright::memory {
namespace {

/// Launches behind one entry of the model, as kernel traces show them: helpers are timed with their kernel but take
/// their own place in the queue (a GEMM clears cuBLAS's semaphores first, ...).
int launches(const model::Kernel& kernel) {
  struct Row {
    std::string_view family;
    int count;
  };
  static constexpr Row rows[] = {{"gemm.", 2},
                                 {"attention.forward", 3},
                                 {"attention.backward", 6},
                                 {"rmsnorm.backward", 2},
                                 {"layernorm.backward", 2},
                                 {"amax", 3},
                                 {"embedding.backward", 14},
                                 {"cross_entropy.unfused.forward", 18},
                                 {"cross_entropy.unfused.backward", 12}};
  const auto& family = kernel.key.family;
  if (kernel.graphed || family.empty()) return 0;
  if (kernel.launches > 1) return kernel.launches;
  const auto row =
      std::find_if(std::begin(rows), std::end(rows), [&](const Row& r) { return family.starts_with(r.family); });
  return row == std::end(rows) ? 1 : row->count;
}

}  // namespace

void Walker::run(const std::vector<Step>& steps, const Piece& piece, int layer, int microbatch, std::uint32_t* blocks) {
  for (const auto& step : steps) {
    if (step.kind == Step::Kind::launch) {
      heap_.launch(launches(piece.kernels[step.index]));
    } else if (step.kind == Step::Kind::free) {
      heap_.drop(blocks[step.index]);
      blocks[step.index] = none;
    } else if (offload::is_hook(step.kind)) {
      offload_hook();
    } else if (step.kind == Step::Kind::synchronize) {
      heap_.synchronize();
    } else if (step.kind == Step::Kind::allocate) {
      if (step.first_microbatch_only && microbatch > 0) continue;
      const auto& tensor = piece.tensors[step.index];
      blocks[step.index] = heap_.allocate(tensor);
      if (heap_.events() != watched_) continue;
      const auto next =
          std::find_if(&step, steps.data() + steps.size(), [](const Step& s) { return s.kind == Step::Kind::launch; });
      kernel = piece.name + (layer >= 0 ? " " + std::to_string(layer) : "");
      if (next != steps.data() + steps.size()) kernel += ", " + piece.kernels[next->index].name;
    }
  }
}

void Walker::begin_forward(int microbatch, int chunk) {
  auto& f = flight(microbatch, chunk);
  modules_[static_cast<std::size_t>(chunk)].assign(f.input);
  heap_.hold(f.input);  // saved by the first piece
  f.saved.assign(offsets_[static_cast<std::size_t>(chunk)].back(), none);
  f.border = f.input;
}

void Walker::end_forward(Flight& f) {
  f.output = f.border;
  if (f.output == none) shrink(f);  // a loss
  output_.clear();
  ++forwards_done_;
}

void Walker::forward(int microbatch, int chunk) {
  const auto& parts = rank_.chunks[static_cast<std::size_t>(chunk)];
  begin_forward(microbatch, chunk);
  auto& f = flight(microbatch, chunk);
  for (std::size_t i = 0; i < parts.pieces.size(); ++i) {
    auto* blocks = this->blocks(f, chunk, i);
    blocks[Piece::input] = f.border;
    run(piece(chunk, i).forward, piece(chunk, i), parts.layers[i], microbatch, blocks);
    f.border = std::exchange(blocks[Piece::output], none);
  }
  end_forward(f);
}

void Walker::begin_backward(Flight& f) {
  if (!interleaved_) {  // input_tensor = input_tensors.pop(0), output_tensor = output_tensors.pop(0)
    input_.assign(f.input);
    heap_.drop(f.input);
    output_.assign(f.placeholder);
  }
  f.turned = true;
  f.border = f.gradient;
  heap_.hold(f.border);
}

/// A piece's backward is done: what its input gradient is.
void Walker::turn_border(Flight& f, const std::uint32_t* blocks) {
  // Without an own input gradient it added into its output gradient; none if the piece has freed that.
  f.border = blocks[Piece::input_gradient] != none ? blocks[Piece::input_gradient] : blocks[Piece::output_gradient];
}

void Walker::end_backward(Flight& f) {
  offload_hook();  // autograd's callbacks
  const auto gradient = f.border;
  if (f.input != none) heap_.attach(f.input, gradient);
  const bool steady = interleaved_ && config_.overlap_p2p && backwards_done_ < steady_;
  heap_.drop(f.placeholder);
  if (interleaved_) heap_.drop(f.input);
  heap_.drop(f.output);  // only without deallocate_pipeline_outputs
  if (interleaved_) heap_.drop(f.gradient);
  (steady ? iteration_gradient_ : input_gradient_).assign(gradient);
  heap_.drop(gradient);
  f = Flight{};
  f.input_gradient = gradient;
  ++backwards_done_;
  if (!interleaved_ && backwards_done_ == steady_) input_.clear();
}

void Walker::backward(int microbatch, int chunk) {
  const auto& parts = rank_.chunks[static_cast<std::size_t>(chunk)];
  auto& f = flight(microbatch, chunk);
  begin_backward(f);
  for (std::size_t i = parts.pieces.size(); i-- > 0;) {
    auto* blocks = this->blocks(f, chunk, i);
    blocks[Piece::output_gradient] = f.border;
    run(piece(chunk, i).backward, piece(chunk, i), parts.layers[i], microbatch, blocks);
    defer(chunk, i, blocks);
    turn_border(f, blocks);
  }
  end_backward(f);
}

/// Weight gradients that wait for the end of the step.
void Walker::defer(int chunk, std::size_t index, const std::uint32_t* blocks) {
  const auto& what = piece(chunk, index);
  if (what.weight_gradient.empty()) return;
  deferred_.emplace_back(rank_.chunks[static_cast<std::size_t>(chunk)].pieces[index],
                         std::vector<std::uint32_t>(blocks, blocks + what.tensors.size()));
}

/// Which piece of its chunk a node belongs to: the one that has it, of layers as many further on.
std::size_t Walker::piece_of(const Instruction& instruction) const {
  const auto& pieces = rank_.chunks[static_cast<std::size_t>(instruction.chunk)].pieces;
  int further = instruction.node.layer;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto& nodes = stages_.pieces[pieces[i]].nodes;
    const bool is_layer = !nodes.empty() && nodes.front().name == schedule::Node::Name::pre_dispatch_computation;
    if (instruction.node.layer >= 0 ? is_layer && further-- == 0
                                    : !nodes.empty() && nodes.front().name == instruction.node.name)
      return i;
  }
  throw InternalError("memory walk: no piece has a node of the schedule");
}

// Expert-parallel overlap: nodes of a forward and a backward call in turn.
void Walker::node(const Instruction& instruction) {
  using Pass = schedule::Node::Pass;
  if (instruction.node.name == schedule::Node::Name::loss) return;  // a mean: nothing of size
  const int chunk = instruction.chunk;
  const auto index = piece_of(instruction);
  const auto& what = piece(chunk, index);
  auto& f = flight(instruction.microbatch, chunk);
  const auto steps = std::find_if(what.nodes.begin(), what.nodes.end(),
                                  [&](const auto& n) { return n.name == instruction.node.name; });
  if (steps == what.nodes.end()) throw InternalError("memory walk: a piece lacks a node");
  const auto pass = instruction.node.pass;
  const bool first = steps == what.nodes.begin();
  const bool last = steps + 1 == what.nodes.end() || (steps + 1)->name == schedule::Node::Name::loss;
  if (pass == Pass::backward && !f.turned) begin_backward(f);
  auto* blocks = this->blocks(f, chunk, index);
  if (pass == Pass::forward && first) blocks[Piece::input] = f.border;
  if (pass == Pass::backward && last) blocks[Piece::output_gradient] = f.border;
  const int layer = rank_.chunks[static_cast<std::size_t>(chunk)].layers[index];
  run(pass == Pass::forward    ? steps->forward
      : pass == Pass::backward ? steps->backward
                               : steps->weight_gradient,
      what, layer, instruction.microbatch, blocks);
  if (pass == Pass::forward && last) {
    f.output = f.border = std::exchange(blocks[Piece::output], none);  // may be sent before the call ends
  }
  if (pass == Pass::backward && first) {
    defer(chunk, index, blocks);
    turn_border(f, blocks);
    f.input_gradient = f.border;
  }
}

void Walker::end_combined(const Instruction& begin) {
  if (begin.microbatch != schedule::no_microbatch) end_forward(flight(begin.microbatch, begin.chunk));
  if (begin.backward_microbatch != schedule::no_microbatch)
    end_backward(flight(begin.backward_microbatch, begin.backward_chunk));
}

void Walker::deallocate(Flight& f) {
  if (f.output == none) return;
  shrink(f);
  heap_.drop(f.output);
  f.output = none;
}

/// What is left of an output: one element and its graph.
void Walker::shrink(Flight& f) {
  f.placeholder = heap_.allocate({own(Own::placeholder), Bytes(2)});
  heap_.attach(f.placeholder, f.input);
}

/// The frame of a steady iteration returns: what it returned is assigned.
void Walker::end_iteration() {
  if (!iteration_gradient_.named()) return;
  input_gradient_.assign(iteration_gradient_.named_block());
  iteration_gradient_.clear();
}

void Walker::post(const Instruction& instruction) {
  const bool synchronous = instruction.kind == Kind::p2p_sync;
  std::uint32_t input = none, gradient = none;
  bool backward = false;
  for (const auto& part : instruction.parts) {
    auto& f = flight(part.microbatch, part.chunk);
    if (part.type == Part::Type::recv_prev) {
      input = f.input = heap_.allocate({own(Own::received_input), stages_.carried(index_, part.chunk, false)});
    } else if (part.type == Part::Type::recv_next) {
      gradient = f.gradient = heap_.allocate({own(Own::received_gradient), stages_.carried(index_, part.chunk, true)});
    }
    heap_.transfer(part.type == Part::Type::recv_prev   ? input
                   : part.type == Part::Type::recv_next ? gradient
                   : part.type == Part::Type::send_next ? f.output
                                                        : f.input_gradient);
    backward |= part.type == Part::Type::recv_next || part.type == Part::Type::send_prev;
  }
  if (synchronous) heap_.after_synchronous_call();
  if (!synchronous) {
    if (!backward) return;
    const bool first = forwards_done_ == program_.warmup && backwards_done_ == 0;
    first_gradient_.assign(first ? gradient : none);
  } else if (!interleaved_) {
    if (input != none) input_.assign(input);
    if (gradient == none) return;
    output_gradient_.assign(gradient);
    heap_.drop(gradient);  // only the variable names it
  } else {
    const bool ends_backward = backwards_done_ > steady_;
    if (!ends_backward) input_.assign(input);
    if (backwards_done_ > 0 || gradient != none) output_gradient_.assign(gradient);
  }
}

void Walker::wait(const Part& part) {
  const auto& f = flight(part.microbatch, part.chunk);
  if (part.type == Part::Type::recv_next && cool_down()) popped_gradient_.assign(f.gradient);
  if (part.type == Part::Type::recv_prev && forwards_done_ < program_.warmup) popped_input_.assign(f.input);
}

void Walker::step(bool first) {
  offload_.begin_step(first);
  forwards_done_ = backwards_done_ = 0;
  const Instruction* begin = nullptr;  // of the combined call
  after_instruction.clear();
  for (const auto& instruction : program_.instructions) {
    const auto before = heap_.events();
    switch (instruction.kind) {
      case Kind::forward:
        end_iteration();
        forward(instruction.microbatch, instruction.chunk);
        break;
      case Kind::backward:
        end_iteration();
        backward(instruction.microbatch, instruction.chunk);
        break;
      case Kind::deallocate:
        end_iteration();
        deallocate(flight(instruction.microbatch, instruction.chunk));
        break;
      case Kind::p2p_sync:
      case Kind::p2p_async:
        post(instruction);
        break;
      case Kind::wait:
        wait(instruction.parts.front());
        break;
      case Kind::combined_begin:
        end_iteration();
        begin = &instruction;
        if (begin->microbatch != schedule::no_microbatch) begin_forward(begin->microbatch, begin->chunk);
        break;
      case Kind::node:
        node(instruction);
        break;
      case Kind::combined_end:
        end_combined(*begin);
        break;
      case Kind::combined:
        throw InternalError("memory walk: a combined call is not written out");
      case Kind::no_sync_enter:
      case Kind::no_sync_exit:
      case Kind::param_sync:
      case Kind::grad_sync:
        break;
    }
    after_instruction.push_back(heap_.live());
    if (before < watched_ && watched_ <= heap_.events()) {
      schedule::RankProgram one;
      one.instructions.push_back(instruction);
      const auto text = schedule::text(one, true, true);
      place = text.empty() ? "" : text.front();
      const bool computes = instruction.kind == Kind::forward || instruction.kind == Kind::backward;
      if (computes && !place.empty()) place.insert(1, " ");  // "B 3.1"
    }
  }
  end_iteration();
  for (auto* variable :
       {&input_, &output_, &input_gradient_, &output_gradient_, &first_gradient_, &popped_input_, &popped_gradient_}) {
    variable->clear();
  }
  for (auto& [piece, blocks] : deferred_) {
    run(stages_.pieces[piece].weight_gradient, stages_.pieces[piece], -1, 0, blocks.data());
  }
  deferred_.clear();
  heap_.synchronize();  // the gradient norm is read by the host
  const auto before = heap_.events();
  std::vector<std::uint32_t> blocks;
  for (const auto& tensor : rank_.during_optimizer) blocks.push_back(heap_.allocate(tensor));
  for (const auto block : blocks) heap_.drop(block);
  if (before < watched_ && watched_ <= heap_.events()) place = "optimizer step";
}

}  // namespace pipewright::memory
