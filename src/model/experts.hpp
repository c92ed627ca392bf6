// The local experts of a mixture-of-experts layer as grouped GEMMs (Megatron Core moe/experts.py TEGroupedMLP, TE
// pytorch/module/grouped_linear.py): fc1, activation times probability, fc2. Modules of activation offload: expert_fc1,
// moe_act, fused_group_mlp.
#pragma once

#include <memory>
#include <utility>

#include "expert_activation.hpp"
#include "linear.hpp"
#include "offload_groups.hpp"

namespace pipewright::model {

/// The local experts of a layer: two grouped products, fc1 and fc2.
class LocalExperts {
 public:
  virtual ~LocalExperts() = default;
  /// Takes over `rows`, the tokens sorted by expert; the probabilities stay with the caller.
  virtual std::uint32_t forward(std::uint32_t rows, bool grad) = 0;
  /// Gradient of the rows; takes over `dout`.
  virtual std::uint32_t backward(std::uint32_t dout) = 0;
  void weight_gradients() { linear_.weight_gradients.run(); }
  /// Of forward: the rows, where nobody keeps them for the backward pass. The caller's variable names them still.
  std::uint32_t unneeded() { return std::exchange(unneeded_, no_tensor); }

 protected:
  struct Group {
    std::string name;
    Int in, out;
  };
  LocalExperts(PieceBuilder& builder, const Dimensions& dimensions);
  /// The weight gradient of one group: appends to its product's family where the product puts it, and makes it unless
  /// it is added to the main gradient.
  std::uint32_t make_gradient(const Group& group, std::string& family, bool fp8);
  /// After the product: the biases' gradients, and adds `gradient` to the main one.
  void accumulate(const Group& group, std::uint32_t gradient);

  PieceBuilder& w_;
  const Dimensions& d_;
  LinearWriter linear_;  ///< casts, delayed weight gradients
  OffloadWriter offload_;
  Group fc1_, fc2_;
  std::uint32_t unneeded_ = no_tensor;
};

std::unique_ptr<LocalExperts> local_experts(PieceBuilder& builder, const Dimensions& dimensions, LayerPrecision layer,
                                            bool ends = false);

/// TE's fused grouped MLP moves all three tensors; with operator markers (pull request 3128) those of marked operators,
/// fc2's input with the activation's. Ends the region.
void offload_fused(OffloadWriter& offload, const Dimensions& dimensions, std::uint32_t fc1_input, std::uint32_t fc1_out,
                   std::uint32_t fc2_input);

class Experts : public LocalExperts {
 public:
  /// `ends`: nothing before fc1's adapter needs a gradient.
  Experts(PieceBuilder& builder, const Dimensions& dimensions, const Precision& precision, bool ends);

  std::uint32_t forward(std::uint32_t rows, bool grad) override;
  std::uint32_t backward(std::uint32_t dout) override;

 private:
  Operand input(const Group& group, bool grad);
  void swizzled_scales(const Group& group, Product product);
  void gemm(const Group& group, Product product);
  int launches() const;  ///< of one of its products for all experts
  void weight_gradient(const Group& group);
  std::uint32_t add_bias(std::uint32_t out);
  std::uint32_t bias_backward(std::uint32_t dout);
  void bias_chain(const char* name, const char* family, Int launches);
  WeighedIn16Bits weighed_input() const { return {w_, rows(), d_.moe.width, "experts input x probability"}; }
  std::uint32_t weigh_input(std::uint32_t rows_in, bool grad);
  std::uint32_t weigh_input_backward(std::uint32_t gradient);
  static std::uint32_t kept(const Operand& operand);
  void drop_forward_copy(Operand& operand, bool grad);
  /// Padded by what the model is told of, not its layer (experts.py: config.fp8 or config.fp4).
  Int rows() const { return d_.moe.padded; }
  bool pads() const { return d_.moe.padded > d_.moe.received; }

  const Precision precision_;
  const bool fp8_;
  ExpertActivation act_;
  const Linear fc1_adapter_, fc2_adapter_;
  Adapted fc1_adapted_, fc2_adapted_;
  Operand fc1_input_, fc2_input_;
  std::uint32_t fc1_out_ = no_tensor, activation_ = no_tensor, unweighted_ = no_tensor, adapter_input_ = no_tensor;
};

}  // namespace pipewright::model
