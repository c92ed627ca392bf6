// A part of a layer that Transformer Engine's make_graphed_callables has captured (pytorch/graph.py of 2.20):
//
//   forward:   inputs are copied into static buffers   replay   outputs leave as views of the pool's tensors
//   backward:  gradients of the outputs are copied     replay   the input's gradient leaves as a view, those of
//              into static buffers                              parameters as clones (from TE 2.19 on)
//
// Static inputs serve a microbatch until its backward, gradients of outputs one graph after the other. Outputs stay
// until the backward graph is captured, the input's gradient until the next graph has returned its own.
//
// Megatron's own graphs (transformer/cuda_graphs.py, _CudaGraphRunner, _CudagraphReplayNode) read a layer's input where
// the graph before it put it out, and the gradient of its output where the graph after it did: one that follows none in
// its chunk copies its input and the rotary table, one that none follows the gradient. No mask is made for them.
#pragma once

#include <vector>

#include "builder.hpp"

namespace pipewright::model {

class GraphWriter {
 public:
  /// `given_input`, `given_gradient`: what the graph before it, after it, has put where this one reads.
  GraphWriter(PieceBuilder& builder, const Dimensions& dimensions, bool given_input = false,
              bool given_gradient = false)
      : w_(builder), d_(dimensions), given_input_(given_input), given_gradient_(given_gradient) {}

  /// Copies a layer's stream into a static buffer, which is returned, and begins the graph. `masked`: called with a
  /// mask that the graph does not read.
  std::uint32_t enter(bool masked);
  /// The same with attention, whose mask and rotary table are copied, too. Its buffers serve no other graphs
  /// (cuda_graphs.py, sample_keys).
  std::uint32_t enter_attention();
  /// What the graph puts out: these become views of it.
  void put_out(std::initializer_list<std::uint32_t*> outputs);
  void leave() { w_.home(Tensor::Home::allocator); }
  /// The layer's output, not yet allocated; `y` is its view.
  std::uint32_t output();
  void leave_with(std::uint32_t output, std::uint32_t y);

  /// Copies the gradient of an output into a static buffer, which is returned. `gradient` is freed when the graph has
  /// run.
  std::uint32_t copy(std::uint32_t gradient, Int bytes);
  void enter_backward();
  /// The MLP is done; its parameters come after attention's, first to last (torch.nn.Module.parameters).
  void mlp_done();
  /// Frees outputs and static gradients, and clones what parameters got.
  void leave_backward();
  /// The graph of delayed weight gradients. It returns nothing: modules hold theirs (skip_backward_post_hook).
  void enter_weight_gradients() { replay("weight gradients", "small"); }
  void leave_weight_gradients() { leave(), w_.take_returned(); }
  /// The gradient of the graph's input, not yet allocated. `is_output`: the input leaves as an output, too; autograd
  /// then adds on the stream of the warm-up (seen in recorded allocations).
  std::uint32_t input_gradient(bool is_output);
  static void leaves_as_output(PieceBuilder& builder, std::uint32_t gradient);

 private:
  std::uint32_t static_buffer(const std::string& owner, Int bytes);
  std::uint32_t enter_own(bool attends);
  void copy_rotary_table();
  void replay(const std::string& direction, const char* host_family = "cuda_graph");
  /// transformer_layer.py, _get_te_cuda_graph_replay_args: zeros of all pairs, anew for every layer.
  std::uint32_t zeros();
  Int mask_bytes() const { return d_.b * d_.s * d_.s * d_.cp; }
  void copied(const char* name, Int bytes, const char* host_family);

  PieceBuilder& w_;
  const Dimensions& d_;
  bool given_input_, given_gradient_;
  std::vector<PieceBuilder::Returned> of_mlp_;
  std::vector<std::uint32_t> kept_;   ///< until the backward graph has run
  std::vector<std::uint32_t> given_;  ///< gradients of outputs, and their copies
};

}  // namespace pipewright::model
