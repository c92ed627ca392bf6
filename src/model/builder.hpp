// Writes a Piece line by line, as the host code runs: allocations, launches, frees.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dimensions.hpp"
#include "pipewright/model.hpp"

namespace pipewright::model {

/// Names of owners, each once.
class Owners {
 public:
  std::uint32_t operator()(std::string_view name);
  std::vector<std::string> take() { return std::move(names_); }

 private:
  std::vector<std::string> names_;
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>> index_;
};

constexpr std::uint32_t no_tensor = 0xffffffff;

/// One bf16 stand-in for each distinct weight shape (TE pytorch/module/base.py, get_dummy_wgrad).
Tensor dummy_gradient(Owners& owners, Int in, Int out);

/// Work of the host alone, which takes no time on the GPU: what `host_family` costs once, and for each of `launches`.
Kernel host_work(const std::string& name, const char* host_family, int launches = 1);

/// A collective's kernel; what moves where, if it leaves its NVLink domain.
Kernel collective_kernel(Purpose purpose, const std::string& name, const std::string& kind, Int ranks, Int bytes,
                         const Way& way, Stream stream);

/// A finished weight gradient joins the main gradient; Megatron-FSDP copies it into the bucket that is reduced.
profile::Key accumulation(const Dimensions& dimensions, Int elements);

class PieceBuilder {
 public:
  PieceBuilder(Owners& owners, std::string name);

  /// Sizes of the borders; an empty owner means there is none.
  void border(std::uint32_t which, std::string_view owner, Int bytes, Tensor::Home home = Tensor::Home::allocator);
  void to_forward() { steps_ = &piece_.forward; }
  void to_backward() { steps_ = &piece_.backward; }
  void to_weight_gradient() { steps_ = &piece_.weight_gradient; }
  void to_node(schedule::Node::Name name, schedule::Node::Pass pass);

  std::uint32_t owner(std::string_view name) { return owners_(name); }
  void allocate(std::uint32_t tensor) { step(Step::Kind::allocate, tensor); }
  std::uint32_t tensor(std::string_view owner, Int bytes) { return tensor(owner, bytes, home_); }
  std::uint32_t tensor(std::string_view owner, Int bytes, Tensor::Home home);  ///< not yet allocated
  std::uint32_t allocate(std::string_view owner, Int bytes);                   ///< a new tensor
  std::uint32_t allocate_float(std::string_view owner, Int bytes);             ///< its elements have 4 bytes
  std::uint32_t allocate_exchanged(std::string_view owner, Int bytes);         ///< Tensor::exchanged
  void exchanged(std::uint32_t tensor) { piece_.tensors[tensor].exchanged = true; }
  std::uint32_t allocate_on(Stream stream, std::string_view owner, Int bytes);
  std::uint32_t allocate_gradient(Int bytes);  ///< of a weight, for its hook to add
  /// A small parameter's gradient in bf16, made and added to its main gradient by a hook.
  void small_gradient(const std::string& name, Int elements);
  void free(std::uint32_t tensor);  ///< nothing for no_tensor
  void free(std::initializer_list<std::uint32_t> tensors);
  /// Frees tensors and forgets them: what is named no more cannot be freed again.
  template <typename... Ids>
  void release(Ids&... ids) {
    (free(std::exchange(ids, no_tensor)), ...);
  }
  void transient(std::string_view owner, Int bytes) { free(allocate(owner, bytes)); }

  void launch(const std::string& name, profile::Key key, double sm_share = 1);
  void launch(Kernel kernel);
  /// For these microbatches only (from, before).
  void launch(Kernel kernel, const std::vector<std::pair<std::int32_t, std::int32_t>>& microbatches);
  void stands_for(int launches) { piece_.kernels.back().launches = launches; }  ///< the last kernel
  void within_call(int launches) { stands_for(launches), piece_.kernels.back().within_call = true; }
  /// The last kernel is an operator that PyTorch launches by itself: `add` is forward a function under torch.compile,
  /// l2norm a call over many tensors.
  void eager() { on_host("small"); }
  void on_host(const char* family) { piece_.kernels.back().host_family = family; }  ///< whose host cost it has
  void completes(int parameters) { piece_.kernels.back().parameters = parameters; }
  void launch_on(Stream stream, Purpose purpose, const std::string& name, profile::Key key, const std::string& link);
  void collective(Purpose purpose, const std::string& name, const std::string& kind, Int ranks, Int bytes,
                  const Way& way, Stream stream = Stream::compute);
  /// A token dispatcher's kernel that moves a row of `bytes` for every token.
  void dispatcher(const std::string& name, profile::Exchange::Kind kind, const MoeDimensions& moe, Int bytes);
  void wait(Stream stream) { step(Step::Kind::wait, static_cast<std::uint32_t>(stream)); }
  void synchronize(Stream stream) { step(Step::Kind::synchronize, static_cast<std::uint32_t>(stream)); }

  void hook(Step::Kind kind, std::uint32_t group) { step(kind, group); }  ///< of activation offload

  void home(Tensor::Home home) { home_ = home; }  ///< of tensors made from now on
  /// Tensors made while one is alive have as many rows as routing sends. `spread`: Piece::row_spread; 0: they have not.
  class Varying {
   public:
    Varying(PieceBuilder& builder, double spread) : w_(builder), before_(builder.varies_) {
      w_.varies_ = spread > 0;
      w_.piece_.row_spread = std::max(w_.piece_.row_spread, spread);
    }
    ~Varying() { w_.varies_ = before_; }
    Varying(const Varying&) = delete;
    Varying& operator=(const Varying&) = delete;

   private:
    PieceBuilder& w_;
    bool before_;
  };
  bool graphed() const { return home_ == Tensor::Home::graph_pool; }
  std::uint32_t view(std::uint32_t tensor);  ///< of another tensor, as large
  /// A weight gradient's stand-in for autograd, where the product has added into the main gradient.
  void dummy_gradient(Int in, Int out);

  /// What a parameter gets from a backward graph, and the kernel that adds it to its main gradient (without a name: the
  /// product has done that, the gradient is a dummy).
  struct Returned {
    Int bytes = 0;
    Kernel accumulation;
  };
  void returns(Int bytes, const std::string& name, profile::Key key);
  std::vector<Returned> take_returned() { return std::exchange(returned_, {}); }
  void recomputing(bool on) { recompute_ = on; }
  bool recomputes() const { return recompute_; }
  /// What is written from now on runs for these microbatches only; without numbers for all.
  void microbatches(std::int32_t from = 0, std::int32_t before = INT32_MAX) { from_ = from, before_ = before; }
  /// Of the layer being written; the piece's input unless told otherwise.
  std::uint32_t layer_input() const { return layer_input_; }
  void layer_input(std::uint32_t tensor) { layer_input_ = tensor; }
  /// Two autograd nodes saved it as objects of their own.
  void saved_again(std::uint32_t tensor) { saved_again_.push_back(tensor); }
  const std::vector<std::uint32_t>& saved_again() const { return saved_again_; }
  Piece& piece() { return piece_; }
  Piece take() { return std::move(piece_); }
  /// Forward and backward become one node of expert-parallel overlap.
  Piece take_as_node(schedule::Node::Name name);

 private:
  void step(Step::Kind kind, std::uint32_t index) { steps_->push_back({kind, index, from_, before_}); }

  Owners& owners_;
  Piece piece_;
  std::vector<Step>* steps_;
  std::vector<std::uint32_t> saved_again_;
  std::vector<Returned> returned_;
  std::uint32_t layer_input_ = Piece::input;
  Tensor::Home home_ = Tensor::Home::allocator;
  bool recompute_ = false, varies_ = false;
  std::int32_t from_ = 0, before_ = INT32_MAX;
};

}  // namespace pipewright::model
