// Live blocks of a walk: who holds each, how many bytes, whose they are, and the peak.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "likeness.hpp"
#include "pipewright/memory.hpp"

namespace pipewright::memory {

struct LiveBlock {
  std::int64_t bytes = 0;  ///< rounded
  std::uint32_t owner = 0;
  std::uint32_t holders = 0;
  bool transferred = false;       ///< another stream uses it too, and the host does not wait for that: record_stream
  std::uint32_t attached = none;  ///< what it names: an input its gradient, an output (by its graph) the input
  model::Tensor::Home home = model::Tensor::Home::allocator;
  model::Stream stream = model::Stream::compute;
  std::uint32_t shape = 0;
  bool told = true;  ///< to the listener
};

/// Live blocks, their sum and its peak.
class Heap {
 public:
  /// `asynchronous`: the host does not wait for transfers; `gradients_elsewhere`, `capture_reuses`: as in Stages;
  /// `launches_ahead`: as in Rank.
  Heap(std::size_t owners, bool asynchronous, bool gradients_elsewhere, bool capture_reuses,
       std::int64_t launches_ahead, const Listener& listener)
      : by_owner_(owners),
        asynchronous_(asynchronous),
        gradients_elsewhere_(gradients_elsewhere),
        capture_reuses_(capture_reuses),
        launches_ahead_(launches_ahead),
        listener_(listener) {}

  /// With `rows` times the tensor's bytes; the listener is told those with `drawn` rows, too.
  std::uint32_t allocate(const model::Tensor& tensor, double rows = 1, double drawn = 1) {
    const auto times = [&](double factor) {
      return factor == 1 ? tensor.bytes
                         : Bytes(static_cast<std::int64_t>(static_cast<double>(tensor.bytes.value) * factor));
    };
    const std::int64_t bytes = times(rows).value;
    if (keeps(tensor.home)) {
      auto& spare = spare_[{tensor.owner, tensor.shape, block_bytes(bytes)}];
      if (!spare.empty()) {
        const auto id = spare.back();
        spare.pop_back();
        blocks_[id].holders = 1;
        return id;
      }
    }
    std::uint32_t id = 0;
    if (unused_.empty()) {
      id = static_cast<std::uint32_t>(blocks_.size());
      blocks_.emplace_back();
    } else {
      id = unused_.back();
      unused_.pop_back();
    }
    auto& block = blocks_[id];
    // A whole iteration's capture is one stream: nothing but transfers leaves it (recorded on one GPU).
    const bool used_elsewhere = (tensor.exchanged || (tensor.gradient && gradients_elsewhere_)) && !capturing_;
    const auto home = capturing_ && !keeps(tensor.home) ? model::Tensor::Home::graph_pool : tensor.home;
    const bool view = home == model::Tensor::Home::view;
    const auto stream = tensor.stream == model::Stream::compute ? stream_ : tensor.stream;
    block = LiveBlock{view ? 0 : block_bytes(bytes), tensor.owner, 1, used_elsewhere, none, home, stream, tensor.shape};
    const bool graph = is_graphs(home);
    if (graph) {
      graph_live_ += block.bytes;
      graph_peak_ = std::max(graph_peak_, graph_live_);
    } else {
      keep_remembered();
      live_ += block.bytes;
      by_owner_[tensor.owner] += block.bytes;
      ++events_;
    }
    block.told = !view && (graph ? !captured_ : !silent_ || home == model::Tensor::Home::static_buffer);
    if (listener_ && block.told)
      listener_({Event::Kind::allocate, told_from_ + id, tensor.owner, Bytes(bytes), times(drawn), stream, graph});
    if (graph) return id;
    if (events_ == stop_at_) owners_then_ = by_owner_;
    peak_ = std::max(peak_, live_);
    return id;
  }
  /// A cached tensor that nobody has made yet.
  void make(const model::Tensor& tensor) { drop(allocate(tensor)); }
  void hold(std::uint32_t id) {
    if (id != none) ++blocks_[id].holders;
  }
  void drop(std::uint32_t id) {
    if (id == none) return;
    auto& block = blocks_[id];
    if (block.holders == 0) throw InternalError("memory walk: a tensor is freed twice");
    if (--block.holders > 0) return;
    if (keeps(block.home)) {
      spare_[{block.owner, block.shape, block.bytes}].push_back(id);
      return;
    }
    const auto attached = block.attached;
    if (block.home == model::Tensor::Home::graph_gradient) {
      if (const auto before = std::exchange(last_gradient_, id); before != none) free_in_graph(before);
    } else if (block.home == model::Tensor::Home::graph_pool) {
      if (block.transferred && capturing_ && !capture_reuses_)
        held_by_capture_.push_back(id);
      else
        free_in_graph(id);
    } else {
      keep_remembered();
      live_ -= block.bytes;
      by_owner_[block.owner] -= block.bytes;
      ++events_;
      if (block.transferred) {
        tell(Event::Kind::retire, id);
        retired_.emplace_back(launches_, id);
      } else {
        tell(Event::Kind::free, id);
        unused_.push_back(id);
      }
    }
    drop(attached);
  }
  void transfer(std::uint32_t id) {
    if (asynchronous_) record_stream(id);
  }
  void record_stream(std::uint32_t id) {
    if (id != none) blocks_[id].transferred = true;
  }
  /// That of what is made from now on, where it says no other.
  void on_stream(model::Stream stream) { stream_ = stream; }
  void record_current_stream(std::uint32_t id) {
    if (id != none && blocks_[id].stream != stream_) blocks_[id].transferred = true;
  }
  /// Kernels are launched: the GPU has come as far as `launches_ahead` launches ago.
  void launch(int count) {
    launches_ += count;
    while (!retired_.empty() && retired_.front().first + launches_ahead_ <= launches_) release_oldest();
  }
  void after_synchronous_call() {
    if (!asynchronous_) synchronize();
  }
  void synchronize() {
    while (!retired_.empty()) release_oldest();
  }
  /// All that is allocated lives in the graphs' pool; no other stream is waited for there before the capture ends,
  /// unless the allocator finds it joined (taken as soon as it is dropped).
  void capture(bool on) {
    capturing_ = on;
    for (const auto id : std::exchange(held_by_capture_, {})) free_in_graph(id);
  }
  /// What lives for good was told by another heap, and keeps its numbers: nothing is told until speak() but what CUDA
  /// graphs allocate, their pool and static buffers.
  void go_on_after(const Heap& other) {
    told_from_ = static_cast<std::uint32_t>(other.blocks_.size());
    silent_ = true;
  }
  void speak() { silent_ = false; }
  /// All graphs exist: replays find their pool as it is, and nothing more is told of it.
  void end_capture() { captured_ = true; }
  void empty_cache() const {
    if (listener_) listener_({Event::Kind::empty_cache, 0, 0, Bytes(), Bytes(), model::Stream::compute, false});
  }
  void attach(std::uint32_t to, std::uint32_t named) {
    hold(named);
    blocks_[to].attached = named;
  }

  Likeness likeness() const { return Likeness(blocks_.size()); }
  /// Adds its own, and what there is to tell of all blocks that are named.
  void describe(Likeness& state) const {
    for (const auto word :
         {live_, graph_live_, std::int64_t{capturing_}, std::int64_t{captured_}, std::int64_t{silent_}})
      state.add(word);
    state.name(last_gradient_);
    for (const auto& [launches, id] : retired_) {
      state.add(launches_ - launches);
      state.name(id);
    }
    for (const auto id : held_by_capture_) state.name(id);
    for (const auto& [key, ids] : spare_) {
      state.add(static_cast<std::int64_t>(ids.size()));
      for (const auto id : ids) state.name(id);
    }
    for (std::size_t i = 0; i < state.named().size(); ++i) {
      const auto& block = blocks_[state.named()[i]];
      state.add(block.bytes);
      state.add(std::int64_t{block.owner} << 32 | block.shape);
      state.add(std::int64_t{block.holders} << 32 | std::int64_t{block.transferred} << 24 |
                std::int64_t{block.told} << 16 | static_cast<std::int64_t>(block.home) << 8 |
                static_cast<std::int64_t>(block.stream));
      state.name(block.holders > 0 ? block.attached : none);
    }
    // What is never named again stays as it is.
    std::int64_t others = 0;
    for (std::uint32_t id = 0; id < blocks_.size(); ++id) others += blocks_[id].holders > 0 && !state.names(id);
    state.add(others);
  }
  /// A block as the listener knows it, and in which pool it is; none: it has not been told of it, or keeps it for good.
  struct Told {
    std::uint32_t block;
    bool graph;
  };
  std::optional<Told> told(std::uint32_t id) const {
    const auto& block = blocks_[id];
    if (!block.told || keeps(block.home)) return std::nullopt;
    return Told{told_from_ + id, is_graphs(block.home)};
  }
  /// What repeats is left out: so many events.
  void skip(std::int64_t events) {
    events_ += events;
    skipped_ += events;
  }
  std::int64_t skipped() const { return skipped_; }

  std::int64_t live() const { return live_; }
  std::int64_t peak() const { return peak_; }
  std::int64_t events() const { return events_; }
  std::int64_t launches() const { return launches_; }
  std::int64_t graph_pool() const { return graph_peak_; }
  void begin_step() { peak_ = 0; }
  /// Who listens: what happens now is the last to be remembered.
  void remember() { remembered_event_ = events_, remembers_ = true; }
  std::int64_t remembered_event() const { return remembered_event_; }
  /// Who held what then.
  const std::vector<std::int64_t>& remembered_owners() const { return remembers_ ? by_owner_ : remembered_owners_; }
  void remember_owners_at(std::int64_t event) { stop_at_ = event; }
  const std::vector<std::int64_t>& owners_then() const { return owners_then_; }

 private:
  static bool keeps(model::Tensor::Home home) {
    return home == model::Tensor::Home::static_buffer || home == model::Tensor::Home::cached;
  }
  static bool is_graphs(model::Tensor::Home home) {
    return home == model::Tensor::Home::graph_pool || home == model::Tensor::Home::graph_gradient;
  }
  void tell(Event::Kind kind, std::uint32_t id) const {
    if (listener_ && blocks_[id].told)
      listener_(
          {kind, told_from_ + id, blocks_[id].owner, Bytes(blocks_[id].bytes), Bytes(), blocks_[id].stream, false});
  }
  void free_in_graph(std::uint32_t id) {
    const auto& block = blocks_[id];
    graph_live_ -= block.bytes;
    if (listener_ && block.told && !captured_)
      listener_({Event::Kind::free, told_from_ + id, block.owner, Bytes(block.bytes), Bytes(), block.stream, true});
    unused_.push_back(id);
  }
  /// Before bytes change again.
  void keep_remembered() {
    if (std::exchange(remembers_, false)) remembered_owners_ = by_owner_;
  }
  void release_oldest() {
    const auto id = retired_.front().second;
    retired_.pop_front();
    tell(Event::Kind::free, id);
    unused_.push_back(id);
  }

  std::vector<LiveBlock> blocks_;
  std::vector<std::uint32_t> unused_;
  std::vector<std::int64_t> by_owner_, owners_then_, remembered_owners_;
  bool remembers_ = false;  ///< by_owner_ is still what it was then
  /// What is kept for good and nobody uses, by owner, shape and size.
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::int64_t>, std::vector<std::uint32_t>> spare_;
  std::int64_t live_ = 0, peak_ = 0, remembered_event_ = 0, events_ = 0, skipped_ = 0, stop_at_ = -1;
  std::int64_t graph_live_ = 0, graph_peak_ = 0, launches_ = 0;
  std::deque<std::pair<std::int64_t, std::uint32_t>> retired_;  ///< launches when it was freed, block
  std::vector<std::uint32_t> held_by_capture_;
  std::uint32_t last_gradient_ = none;  ///< that a graph has returned
  model::Stream stream_ = model::Stream::compute;
  bool capturing_ = false, captured_ = false, silent_ = false;
  std::uint32_t told_from_ = 0;  ///< number of the first block, to the listener
  const bool asynchronous_, gradients_elsewhere_, capture_reuses_;
  const std::int64_t launches_ahead_;
  const Listener& listener_;
};

/// A variable of the schedule function: assigning it lets go of what it named.
class Variable {
 public:
  explicit Variable(Heap& heap) : heap_(heap) {}
  void assign(std::uint32_t block) {
    heap_.get().hold(block);
    heap_.get().drop(block_);
    block_ = block;
  }
  void clear() { assign(none); }
  bool named() const { return block_ != none; }
  std::uint32_t named_block() const { return block_; }

 private:
  std::reference_wrapper<Heap> heap_;
  std::uint32_t block_ = none;
};

}  // namespace pipewright::memory
