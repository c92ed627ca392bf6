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
#include <numbers>

#include "pipewright/chance.hpp"
#include "walker.hpp"

namespace pipewright::memory {
namespace {

/// Launches behind one entry of the model, as kernel traces show them: helpers are timed with their kernel but take
/// their own place in the queue (a GEMM clears cuBLAS's semaphores first, ...). So do the kernels of a CUDA graph:
/// where hosts ran ahead, 1010 kernels of 421 calls were launched and not begun, and the next call waited.
int launches(const model::Kernel& kernel) {
  struct Row {
    std::string_view family;
    int count;
  };
  static constexpr Row rows[] = {{"gemm.", 2},
                                 {"attention.forward", 3},
                                 {"attention.backward", 6},
                                 {"attention.dropout.forward", 3},
                                 {"attention.dropout.backward", 6},
                                 {"attention.thd.forward", 7},
                                 {"attention.thd.backward", 12},
                                 {"attention.thd.window.forward", 7},
                                 {"attention.thd.window.backward", 12},
                                 {"attention.thd.padded.forward", 7},
                                 {"attention.thd.padded.backward", 11},
                                 {"attention.window.forward", 3},
                                 {"attention.window.backward", 6},
                                 {"attention.sink.forward", 3},
                                 {"attention.sink.backward", 6},
                                 {"rmsnorm.backward", 2},
                                 {"layernorm.backward", 2},
                                 {"amax", 3},
                                 {"embedding.backward", 14},
                                 {"cross_entropy.unfused.forward", 18},
                                 {"cross_entropy.unfused.backward", 12}};
  const auto& family = kernel.key.family;
  if (family.empty()) return 0;
  if (kernel.launches > 1) return kernel.launches;
  const auto row =
      std::find_if(std::begin(rows), std::end(rows), [&](const Row& r) { return family.starts_with(r.family); });
  return row == std::end(rows) ? 1 : row->count;
}

}  // namespace

Walker::Walker(const Stages& stages, const schedule::Program& program, const offload::Plan& plan, int rank,
               bool asynchronous, const Listener& listener, Rows rows)
    : eager_(stages.eager
                 ? std::make_unique<Walker>(*stages.eager, program, *plan.eager, rank, asynchronous, listener, rows)
                 : nullptr),
      in_eager_(stages.eager != nullptr),
      stages_(stages),
      index_(rank),
      rows_(rows),
      rank_(stages.ranks.at(static_cast<std::size_t>(rank))),
      whole_(program),
      program_(program.ranks.at(static_cast<std::size_t>(rank))),
      config_(program.config),
      interleaved_(program.config.chunks.has_value()),
      heap_(stages.owners.size() + own_names.size(), asynchronous, stages.gradients_elsewhere, stages.capture_reuses,
            rank_.launches_ahead, listener),
      offload_(plan, stages, heap_),
      modules_(rank_.chunks.size(), Variable(heap_)),
      flights_(rank_.chunks.size() * static_cast<std::size_t>(config_.microbatches)) {
  for (const auto& chunk : rank_.chunks) {
    auto& offsets = offsets_.emplace_back(1, 0);
    for (const auto piece : chunk.pieces) offsets.push_back(offsets.back() + stages_.pieces[piece].tensors.size());
  }
  for (const auto& piece : stages_.pieces) {
    auto& counts = launches_.emplace_back();
    for (const auto& kernel : piece.kernels) counts.push_back(launches(kernel));
  }
  for (const auto& kernel : rank_.construction.kernels) construction_launches_.push_back(launches(kernel));
  forwards_ = static_cast<int>(flights_.size());
  steady_ = forwards_ - program_.warmup;
}

const std::vector<int>& Walker::launches_of(const Piece& piece) const {
  return &piece == &rank_.construction ? construction_launches_
                                       : launches_[static_cast<std::size_t>(&piece - stages_.pieces.data())];
}

/// Rows as one draw of the routing sends them, over those of the mean: what grows beyond a free segment takes a new
/// one. Irwin-Hall of four uniform numbers for the normal distribution.
double Walker::drawn_rows(const Piece& piece, int layer, int microbatch) const {
  if (rows_ == Rows::mean || piece.row_spread == 0) return 1;
  const auto draw = static_cast<std::uint64_t>(draw_of(microbatch, schedule::period(config_)));
  const auto bits =
      Chance(std::uint64_t{1} << 56 | static_cast<std::uint64_t>(eager_ != nullptr) << 55 |
             static_cast<std::uint64_t>(steps_begun_) << 48 | static_cast<std::uint64_t>(layer + 1) << 24 | draw)
          .next();
  double sum = -2;
  for (int part = 0; part < 4; ++part) sum += static_cast<double>(bits >> 16 * part & 0xffff) / 0xffff;
  return std::max(0.0, 1 + piece.row_spread * sum * std::numbers::sqrt3);
}

void Walker::run(const std::vector<Step>& steps, const Piece& piece, int layer, int microbatch, std::uint32_t* blocks) {
  const auto& launches = launches_of(piece);
  const double drawn = drawn_rows(piece, layer, microbatch), rows = rows_ == Rows::drawn ? drawn : 1;
  for (const auto& step : steps) {
    if (!step.runs(microbatch)) continue;
    if (step.kind == Step::Kind::launch) {
      heap_.launch(launches[step.index]);
    } else if (step.kind == Step::Kind::free) {
      if (in_node_ && step.index != Piece::input) heap_.record_current_stream(blocks[step.index]);
      heap_.drop(blocks[step.index]);
      blocks[step.index] = none;
    } else if (offload::is_hook(step.kind)) {
      offload_hook();
    } else if (step.kind == Step::Kind::synchronize) {
      heap_.synchronize();
    } else if (step.kind == Step::Kind::allocate) {
      const auto& tensor = piece.tensors[step.index];
      const auto before = heap_.events();  // a buffer that is used again is none
      remembers_ = notices_ = false;
      blocks[step.index] = tensor.varies ? heap_.allocate(tensor, rows, drawn) : heap_.allocate(tensor);
      const Step* end = steps.data() + steps.size();
      if (remembers_) remembered_step_ = {heap_.events(), nullptr, &piece, layer, &step, end};
      if (!notices_ && (heap_.events() != watched_event_ || heap_.events() == before)) continue;
      for (Moment& moment : moments_)
        if (moment.event == heap_.events()) moment.kernel = kernel(piece, layer, &step, end);
    }
  }
}

/// "layer 5, attention.core backward": the next kernel.
std::string Walker::kernel(const Piece& piece, int layer, const Step* step, const Step* end) {
  const auto* next = std::find_if(step, end, [](const Step& s) { return s.kind == Step::Kind::launch; });
  std::string text = piece.name + (layer >= 0 ? " " + std::to_string(layer) : "");
  if (next != end) text += ", " + piece.kernels[next->index].name;
  return text;
}

Walker::Moment Walker::remembered() const {
  Moment moment{heap_.remembered_event(), {}, {}};
  const At &step = remembered_step_, &at = remembered_instruction_;
  if (step.event == moment.event) moment.kernel = kernel(*step.piece, step.layer, step.step, step.end);
  if (at.event == moment.event) moment.place = at.instruction == nullptr ? "optimizer step" : place(*at.instruction);
  return moment;
}

void Walker::run(const std::vector<Step>& steps, model::Call call, std::size_t position, std::uint32_t* blocks) {
  run(steps, piece(call.chunk, position), rank_.chunks[static_cast<std::size_t>(call.chunk)].layers[position],
      call.microbatch, blocks);
}

bool Walker::begin_forward(model::Call call) {
  auto& f = flight(call);
  modules_[static_cast<std::size_t>(call.chunk)].assign(f.input);
  heap_.hold(f.input);  // saved by the first piece
  f.saved.assign(offsets_[static_cast<std::size_t>(call.chunk)].back(), none);
  f.border = f.input;
  const auto& chunk = rank_.chunks[static_cast<std::size_t>(call.chunk)];
  if (chunk.batch.value > 0) {
    f.batch = heap_.allocate({own(Own::batch), chunk.batch});
    if (chunk.own_batch < chunk.batch)
      heap_.drop(std::exchange(f.batch, heap_.allocate({own(Own::batch), chunk.own_batch})));
  }
  return true;
}

void Walker::forward(model::Call call, std::size_t position) {
  auto& f = flight(call);
  auto* blocks = this->blocks(f, call.chunk, position);
  blocks[Piece::input] = f.border;
  run(piece(call.chunk, position).forward, call, position, blocks);
  f.border = std::exchange(blocks[Piece::output], none);
}

void Walker::end_forward(model::Call call) {
  auto& f = flight(call);
  f.output = f.border;
  if (f.output == none) shrink(f);  // a loss
  if (!rank_.chunks[static_cast<std::size_t>(call.chunk)].keeps_batch) heap_.drop(std::exchange(f.batch, none));
  output_.clear();
  ++forwards_done_;
}

bool Walker::begin_backward(model::Call call) {
  if (!in_combined_) turn(flight(call));  // there its gradient comes within the call
  return true;
}

void Walker::turn(Flight& f) {
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

void Walker::end_backward(model::Call call) {
  auto& f = flight(call);
  const auto gradient = f.border;
  if (f.input != none) heap_.attach(f.input, gradient);
  const bool steady = interleaved_ && config_.overlap_p2p && backwards_done_ < steady_;
  heap_.drop(f.placeholder);
  heap_.drop(f.batch);
  if (interleaved_) heap_.drop(f.input);
  heap_.drop(f.output);  // only without deallocate_pipeline_outputs
  if (interleaved_) heap_.drop(f.gradient);
  (steady ? iteration_gradient_ : input_gradient_).assign(gradient);
  heap_.drop(gradient);
  f = Flight{};
  f.input_gradient = gradient;
  ++backwards_done_;
  if (!interleaved_ && backwards_done_ == steady_) input_.clear();
  // Without pipeline stages one microbatch is captured and serves all (cuda_graphs.py, _get_cuda_graph_input_data).
  if (whole_.ranks.size() == 1 && !stages_.full_iteration_graph) heap_.end_capture();
}

void Walker::backward(model::Call call, std::size_t position) {
  auto& f = flight(call);
  auto* blocks = this->blocks(f, call.chunk, position);
  blocks[Piece::output_gradient] = f.border;
  run(piece(call.chunk, position).backward, call, position, blocks);
  turn_border(f, blocks);
}

void Walker::defer_weight_gradient(model::Call call, std::size_t position) {
  const auto* blocks = this->blocks(flight(call), call.chunk, position);
  deferred_.push_back({rank_.chunks[static_cast<std::size_t>(call.chunk)].pieces[position],
                       call.microbatch,
                       {blocks, blocks + piece(call.chunk, position).tensors.size()}});
}

// Expert-parallel overlap: nodes of a forward and a backward call in turn. What a node makes belongs to its stream,
// what it is given by a node on another stream is recorded on its own (core_r0.19.0 pipeline_parallel/utils.py:264-310,
// free_input and output_grad), but not a layer's input.
void Walker::node(const Instruction& instruction, const model::NodePlace& at) {
  using Pass = schedule::Node::Pass;
  const model::Call call{instruction.microbatch, instruction.chunk};
  auto& f = flight(call);
  const auto pass = instruction.node.pass;
  if (instruction.node.name == schedule::Node::Name::loss) {  // a mean: nothing of size
    if (pass == Pass::forward) run(at.steps->forward, call, at.position, blocks(f, call.chunk, at.position));
    return;
  }
  if (pass == Pass::backward && !f.turned) turn(f);
  auto* blocks = this->blocks(f, call.chunk, at.position);
  if (pass == Pass::forward && at.first) blocks[Piece::input] = f.border;
  if (pass == Pass::backward && at.last) blocks[Piece::output_gradient] = f.border;
  in_node_ = true;
  heap_.on_stream(instruction.on_communication_stream ? model::Stream::communication : model::Stream::compute);
  run(pass == Pass::forward    ? at.steps->forward
      : pass == Pass::backward ? at.steps->backward
                               : at.steps->weight_gradient,
      call, at.position, blocks);
  heap_.on_stream(model::Stream::compute);
  in_node_ = false;
  if (pass == Pass::forward && at.last) {
    f.output = f.border = std::exchange(blocks[Piece::output], none);  // may be sent before the call ends
  }
  if (pass == Pass::backward && at.first) {
    turn_border(f, blocks);
    f.input_gradient = f.border;
  }
}

void Walker::deallocate(model::Call call) {
  auto& f = flight(call);
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

bool Walker::transfer(const Instruction& instruction, bool synchronous) {
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
    if (!backward) return true;
    const bool first = forwards_done_ == program_.warmup && backwards_done_ == 0;
    first_gradient_.assign(first ? gradient : none);
  } else if (!interleaved_) {
    if (input != none) input_.assign(input);
    if (gradient == none) return true;
    output_gradient_.assign(gradient);
    heap_.drop(gradient);  // only the variable names it
  } else {
    const bool ends_backward = backwards_done_ > steady_;
    if (!ends_backward) input_.assign(input);
    if (backwards_done_ > 0 || gradient != none) output_gradient_.assign(gradient);
  }
  return true;
}

bool Walker::wait(const Part& part) {
  const auto& f = flight(part.microbatch, part.chunk);
  if (part.type == Part::Type::recv_next && cool_down()) popped_gradient_.assign(f.gradient);
  if (part.type == Part::Type::recv_prev && forwards_done_ < program_.warmup) popped_input_.assign(f.input);
  return true;
}

void Walker::leave_out_repeats(const Beside& beside) {
  if (eager_) eager_->leave_out_repeats(beside);
  if (!offload_.plan().empty()) return;  // its actions name microbatches, and there are more after the first step
  rounds_ = std::make_unique<const Rounds>(stages_, config_, program_, rank_.chunks.size(), rows_ != Rows::mean);
  beside_ = beside;
}

/// What the rest of the step depends on, at the begin of a round.
std::vector<std::int64_t> Walker::state(std::size_t round) const {
  Likeness state = heap_.likeness();
  const std::size_t chunks = rank_.chunks.size();
  const auto first = round * static_cast<std::size_t>(rounds_->microbatches()) * chunks;
  for (std::size_t i = 0; i < flights_.size(); ++i) {
    if (!rounds_->in_use(i, round)) continue;
    const Flight& f = flights_[i];
    state.add(static_cast<std::int64_t>(i) - static_cast<std::int64_t>(first));
    for (const auto block : {f.input, f.output, f.placeholder, f.gradient, f.input_gradient, f.batch, f.border})
      state.name(block);
    state.add(f.turned);
    for (const auto block : f.saved) state.name(block);
  }
  for (const auto* variable : {&input_, &output_, &input_gradient_, &output_gradient_, &iteration_gradient_,
                               &first_gradient_, &popped_input_, &popped_gradient_})
    state.name(variable->named_block());
  for (const auto& module : modules_) state.name(module.named_block());
  for (const auto& [piece, microbatch, blocks] : deferred_) {
    state.add(std::int64_t{piece} << 32 | microbatch);
    for (const auto block : blocks) state.name(block);
  }
  for (const auto block : gradients_) state.name(block);
  heap_.describe(state);
  beside_.blocks(heap_, state);
  return std::move(state).words();
}

/// What was done for microbatches up to a round is done for later ones.
void Walker::rename_flights(std::size_t round, int shift) {
  const std::size_t later = static_cast<std::size_t>(shift) * rank_.chunks.size();
  for (std::size_t i = flights_.size() - later; i-- > 0;)
    if (rounds_->in_use(i, round)) flights_[i + later] = std::exchange(flights_[i], Flight{});
}

/// The instruction with which to go on instead of this one: where a round begins as an earlier one did, all that is
/// alike and would bring about the same again is left out. Most pipelines never come back to where they were, for their
/// blocks wander between holes of one size: the holes are compared before all else.
std::size_t Walker::go_on_from(std::size_t instruction) {
  constexpr std::size_t most = 64;
  const auto round = rounds_->at(instruction);
  if (!round || begins_.size() == most || forwards_done_ <= program_.warmup || backwards_done_ == 0) return instruction;
  const std::size_t until = rounds_->alike_until(*round);
  if (until < *round + 2) return instruction;
  Likeness holes = heap_.likeness();
  beside_.holes(holes);
  Begin now{*round, std::move(holes).words(), {}, heap_.events(), forwards_done_, backwards_done_};
  const auto alike = [&](const Begin& before) {
    return rounds_->alike_until(before.round) == until && before.holes == now.holes;
  };
  if (std::ranges::any_of(begins_, alike)) {
    now.state = state(*round);
    const auto before = std::ranges::find(begins_, now.state, &Begin::state);
    if (before != begins_.end() && alike(*before)) {
      const std::size_t period = *round - before->round, times = (until - 1 - *round) / period;
      const std::size_t later = *round + times * period;
      if (times == 0 || !rounds_->same_in_use(*round, later)) return instruction;
      const auto count = static_cast<std::int64_t>(times);
      heap_.skip(count * (now.events - before->events));
      forwards_done_ += static_cast<int>(count) * (now.forwards - before->forwards);
      backwards_done_ += static_cast<int>(count) * (now.backwards - before->backwards);
      rename_flights(*round, static_cast<int>(times * period) * rounds_->microbatches());
      begins_.clear();
      return rounds_->first_of(later);
    }
  }
  begins_.push_back(std::move(now));
  return instruction;
}

void Walker::step(bool first) {
  const bool learns = first && !(eager_ && offload_.plan().stash);  // steps before a capture have learned for it
  if (!learns && !std::exchange(made_stash_, true)) hold(offload_.plan().stash_buffers);
  offload_.begin_step(learns);
  forwards_done_ = backwards_done_ = 0;
  heap_.capture(stages_.full_iteration_graph);
  for (Moment& moment : moments_) moment.now = false;  // outside of all instructions
  begins_.clear();
  ++steps_begun_;
  model::Follower<Walker> follower(stages_, whole_, index_, *this);
  for (std::size_t index = 0; index < program_.instructions.size(); ++index) {
    if (rounds_) index = go_on_from(index);
    const auto& instruction = program_.instructions[index];
    const auto before = heap_.events();
    if (instruction.kind == Kind::forward || instruction.kind == Kind::backward ||
        instruction.kind == Kind::deallocate || instruction.kind == Kind::combined_begin)
      end_iteration();
    follower.follow(instruction);
    if (on_instruction) on_instruction(static_cast<std::uint32_t>(index));
    if (heap_.remembered_event() > before) remembered_instruction_ = {heap_.remembered_event(), &instruction};
    for (Moment& moment : moments_)
      if (happened(moment, before)) moment.place = place(instruction);
  }
  end_iteration();
  for (auto* variable :
       {&input_, &output_, &input_gradient_, &output_gradient_, &first_gradient_, &popped_input_, &popped_gradient_}) {
    variable->clear();
  }
  for (auto& [piece, microbatch, blocks] : deferred_)
    run(stages_.pieces[piece].weight_gradient, stages_.pieces[piece], -1, microbatch, blocks.data());
  deferred_.clear();
  for (const auto& tensor : rank_.since_first_step)
    if (first && tensor.home == model::Tensor::Home::cached) heap_.make(tensor);  // where no piece has needed it yet
  heap_.capture(false);
  heap_.synchronize();  // the gradient norm is read by the host
  const auto before = heap_.events();
  std::vector<std::uint32_t> blocks;
  auto& gradients = holds_gradients_ ? gradients_ : blocks;
  for (const auto& tensor : rank_.during_optimizer) gradients.push_back(heap_.allocate(tensor));
  std::vector<std::uint32_t> counting;
  for (const auto& tensor : rank_.before_update) counting.push_back(heap_.allocate(tensor));
  for (const auto block : counting) heap_.drop(block);
  update(first);
  for (const auto& tensor : rank_.after_update) blocks.push_back(heap_.allocate(tensor));
  for (const auto block : blocks) heap_.drop(block);
  for (Moment& moment : moments_)
    if (happened(moment, before)) moment.place = "optimizer step";
  if (heap_.remembered_event() > before) remembered_instruction_ = {heap_.remembered_event(), nullptr};
}

void Walker::update(bool first) {
  using Does = model::UpdateStep::Kind;
  std::vector<std::uint32_t> within(rank_.in_update.size(), none);
  for (const auto& [does, index] : rank_.update) {
    if (does == Does::make && first) heap_.allocate(rank_.optimizer_state[index]);
    if (does == Does::allocate || (does == Does::allocate_first && first))
      within[index] = heap_.allocate(rank_.in_update[index]);
    if (does == Does::free) heap_.drop(std::exchange(within[index], none));
  }
}

bool Walker::happened(Moment& moment, std::int64_t before) const {
  return std::exchange(moment.now, false) || (before < moment.event && moment.event <= heap_.events());
}

std::string Walker::place(const Instruction& instruction) {
  schedule::RankProgram one;
  one.instructions.push_back(instruction);
  const auto text = schedule::text(one, true, true);
  std::string place = text.empty() ? "" : text.front();
  const bool computes = instruction.kind == Kind::forward || instruction.kind == Kind::backward;
  if (computes && !place.empty()) place.insert(1, " ");  // "B 3.1"
  return place;
}

}  // namespace pipewright::memory
