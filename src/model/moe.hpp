// A mixture-of-experts layer (Megatron Core moe/moe_layer.py) with its norm: norm, shared experts, router, dispatch,
// experts, combine. As a whole, or cut into the nodes of expert-parallel overlap.
#pragma once

#include <memory>

#include "dispatcher.hpp"
#include "experts.hpp"
#include "mlp.hpp"
#include "norm.hpp"
#include "router.hpp"
#include "shared_experts.hpp"

namespace pipewright::model {

class MixtureOfExperts : public Mlp {
 public:
  /// `ends`: of a frozen model, whose first adapters are those beside its fc1.
  MixtureOfExperts(PieceBuilder& builder, const Dimensions& dimensions, LayerPrecision layer, AnyWidth any,
                   bool ends = false);

  std::uint32_t forward(bool grad) override;
  std::uint32_t backward(std::uint32_t dropped) override;
  void weight_gradients() override {
    experts_->weight_gradients();
    linear_.weight_gradients.run();
  }
  /// A graph holds what comes before the dispatch: forward() begins inside it, backward() ends there.
  void begin_in(GraphWriter& graph) { graph_ = &graph; }

  // The parts that nodes of expert-parallel overlap consist of, in forward order.
  void prepare();                ///< norm, shared experts, router, permutation
  void dispatch_node();          ///< frees what was sent
  void compute_node();           ///< frees what arrived
  std::uint32_t combine_node();  ///< the output; what was combined lives until release_combined
  void release_combined() { w_.free(sent_), sent_ = no_tensor; }
  // Each takes the gradient that the one before returned and frees it.
  std::uint32_t combine_backward();
  std::uint32_t compute_backward(std::uint32_t gradient);
  std::uint32_t dispatch_backward(std::uint32_t gradient);
  std::uint32_t prepare_backward(std::uint32_t gradient);  ///< of the norm's input; with overlap frees nothing given
  void shared_weight_gradients() { shared_.weight_gradients(); }

 private:
  std::uint32_t run(bool grad);
  std::uint32_t end_backward(std::uint32_t gradient, std::uint32_t dropped);
  void leave_graph();
  std::uint32_t enter_graph(std::uint32_t gradient, bool frees);
  std::uint32_t inputs_backward(std::uint32_t input);
  void route(bool grad);
  void dispatch(bool grad);
  void compute(bool grad);
  std::uint32_t communicate_back(bool grad);
  std::uint32_t finish(std::uint32_t combined, bool grad);
  void project_down(bool grad);
  std::uint32_t project_down_backward(std::uint32_t gradient, bool frees);
  std::uint32_t project_up(std::uint32_t rows, bool grad);
  std::uint32_t step(std::uint32_t from, std::uint32_t to);

  PieceBuilder& w_;
  const Dimensions& d_;
  const MoeDimensions& m_;
  const bool ends_;
  Norm norm_;
  Router router_;
  Dispatcher dispatcher_;
  std::unique_ptr<LocalExperts> experts_;
  SharedExperts shared_;
  // moe_latent_size: whole on every tensor-parallel rank, before the dispatch and after the combine.
  LinearWriter linear_;
  const Linear down_, up_;
  Operand down_input_, up_input_;
  std::uint32_t latent_ = no_tensor, latent_output_ = no_tensor;
  GraphWriter* graph_ = nullptr;
  std::uint32_t shared_output_ = no_tensor, shared_gradient_ = no_tensor, sent_ = no_tensor;
};

}  // namespace pipewright::model
