// n rows of which the products compute those that are tokens, width h, expert FFN width f. An MXFP8 copy of n x w has
// n w bytes and n w / 32 of scales; R by rows, C by columns:
//
//   forward    rows [2 n h] -quantize-> R, C(h) -fc1, activation, quantize-> fc1_out [4 n f], R, C(f) -fc2-> [2 n h]
//              kept: C(h), fc1_out, C(f)
//   backward   dout [2 n h] -quantize-> R, C(h) -fc2 dgrad, activation, quantize-> R, C(2 f) -fc1 dgrad-> [2 n h]
//
// Weights that are kept in bf16 are cast before the rows, each expert's by itself, both copies (fuser_forward,
// fc1_weights; no copy outlives the operation, as a module's does from microbatch to microbatch).
//
// A product with its epilogue takes the time of the product. The scales of the experts' weights are swizzled into a
// buffer before each product.
#include "fused_experts.hpp"

#include <utility>

namespace pipewright::model {
namespace {

constexpr Int scaled_together = 32;

}  // namespace

FusedExperts::FusedExperts(PieceBuilder& builder, const Dimensions& dimensions)
    : LocalExperts(builder, dimensions), stash_(builder, dimensions) {}

Operand FusedExperts::both(const std::string& name, Int width) {
  Operand result;
  result.data = w_.allocate(name + "_fp8", d_.precision.copy_bytes(held(), width, false));
  result.transpose = w_.allocate(name + "_fp8_transpose", d_.precision.copy_bytes(held(), width, true));
  return result;
}

/// swizzle_scales_and_pack_ptrs_for_discrete_weights, then the product: one grid over the tiles of all experts, as of
/// one product of all rows.
void FusedExperts::gemm(const Group& group, Product product) {
  const bool forward = product == Product::forward;
  const Int n = forward ? group.out : group.in, k = forward ? group.in : group.out;
  const auto scales = w_.allocate("workspace", d_.moe.local * group.in * group.out / scaled_together);
  w_.launch("swizzled scales", {"small", {}});
  w_.launch(group.name + suffix(product),
            {product_family(d_.precision.recipe, "gemm.grouped.", forward), {1, rows(), n, k}},
            d_.share_without(d_.left.fused_experts));
  w_.free(scales);
}

void FusedExperts::weight_gradient(const Group& group) {
  std::string family = product_family(d_.precision.recipe, "gemm.grouped.", true);
  const auto gradient = make_gradient(group, family, true);
  w_.launch(group.name + " wgrad", {family, {d_.moe.local, rows(), group.out, group.in}});
  w_.completes(static_cast<int>(d_.moe.local));
  accumulate(group, gradient);
}

Operand FusedExperts::cast_weights(const Group& group, bool grad) {
  const PieceBuilder::Varying weights_do_not(w_, 0);
  if (d_.fp8_parameters) return {};
  const std::string name = group.name + " weights";
  const auto copies = [&](bool transpose) {
    return w_.allocate(name, d_.moe.local * d_.precision.weight_bytes(group.out, group.in, transpose));
  };
  Operand result;
  result.data = copies(false);
  if (grad) result.transpose = copies(true);
  for (Int expert = 0; expert < d_.moe.local; ++expert)
    linear_.cast_by_block(d_.precision, name + " cast", group.out, group.in, grad);
  return result;
}

/// mark_grouped_tensor: these have rows that are no tokens. The probabilities (4 bytes a row) stay where they are.
void FusedExperts::stash() {
  using Type = OffloadGroup::Pages::Type;
  const Int expected = d_.moe.expected;
  const auto data = [&](Type type, Int row_bytes) { return OffloadGroup::Pages{type, row_bytes, 0, expected, rows()}; };
  const auto scales = [&](Type type, Int row_bytes) {
    return OffloadGroup::Pages{type, row_bytes, 0, expected / scaled_together, rows() / scaled_together};
  };
  stash_.saves(fc1_input_, {data(Type::bytes, d_.moe.width), scales(Type::bytes, d_.moe.width)});
  stash_.saves(fc1_out_, {data(Type::bf16, 2 * fc1_.out)});
  stash_.saves(fc2_input_, {data(Type::e4m3, d_.moe.f), scales(Type::e8m0, d_.moe.f)});
  stash_.commit();
}

std::uint32_t FusedExperts::forward(std::uint32_t rows_in, bool grad) {
  const PieceBuilder::Varying rows_vary(w_, d_.moe.row_spread);
  stash_.begin(grad);
  offload_.begin(Offload::fused_group_mlp, grad);
  fc1_weights_ = cast_weights(fc1_, grad);
  fc2_weights_ = cast_weights(fc2_, grad);
  auto input = both("experts.fc1_input", d_.moe.width);
  w_.launch("experts.fc1_input quantize", {"quantize.mxfp8", {rows(), d_.moe.width}});
  fc1_out_ = w_.allocate("experts.fc1_output", 2 * held() * fc1_.out);
  auto activation = both("experts.fc2_input", d_.moe.f);
  gemm(fc1_, Product::forward);
  const auto out = w_.allocate("experts.fc2_output", 2 * held() * d_.moe.width);
  gemm(fc2_, Product::forward);
  w_.free({input.data, activation.data});
  fc1_input_ = input.transpose;
  fc2_input_ = activation.transpose;
  unneeded_ = rows_in;
  if (!grad) {
    w_.free({std::exchange(fc1_input_, no_tensor), std::exchange(fc2_input_, no_tensor)});
    w_.free(std::exchange(fc1_out_, no_tensor));
    release_weights();
    return out;
  }
  offload_fused(offload_, d_, fc1_input_, fc1_out_, fc2_input_);
  stash();
  return out;
}

std::uint32_t FusedExperts::backward(std::uint32_t dout) {
  const PieceBuilder::Varying rows_vary(w_, d_.moe.row_spread);
  stash_.needed();
  offload_.needed(Offload::fused_group_mlp);
  const auto gradient = both("experts.fc2_gradient", d_.moe.width);
  w_.launch("experts.fc2_gradient quantize", {"quantize.mxfp8", {rows(), d_.moe.width}});
  if (d_.bias) {  // compute_grouped_dbias_dscales reads the gradient once more, 16 bits
    w_.launch("experts.fc2 bias gradient", {"l2norm", {rows() * d_.moe.width / 2}});
    w_.transient("experts.fc2_bias_gradient", 4 * d_.moe.local * d_.moe.width);
  }
  const auto dprobs = w_.allocate("moe.probs_gradient", 4 * held());
  const auto fc1_gradient = both("experts.fc1_gradient", fc1_.out);
  gemm(fc2_, Product::dgrad);
  const bool delays = linear_.weight_gradients.delays();
  linear_.weight_gradients.put([=, this, saved = std::exchange(fc2_input_, no_tensor)] {
    weight_gradient(fc2_);
    w_.free(saved);
    if (delays) linear_.release(gradient);
  });
  const auto din = w_.allocate("experts.input_gradient", 2 * held() * d_.moe.width);
  gemm(fc1_, Product::dgrad);
  linear_.weight_gradients.put([=, this, saved = std::exchange(fc1_input_, no_tensor)] {
    weight_gradient(fc1_);
    w_.free(saved);
    linear_.release(fc1_gradient);
  });
  // The function's variables live until it returns.
  if (!delays) linear_.release(gradient);
  w_.free({std::exchange(fc1_out_, no_tensor), dprobs, dout});
  release_weights();
  stash_.done();
  offload_.done(Offload::fused_group_mlp);
  return din;
}

std::unique_ptr<LocalExperts> local_experts(PieceBuilder& builder, const Dimensions& d, LayerPrecision layer,
                                            bool ends) {
  if (d.moe.fused && layer.quantized) return std::make_unique<FusedExperts>(builder, d);
  return std::make_unique<Experts>(builder, d, d.precision_of(layer, "mlp.experts.linear_fc1"), ends);
}

}  // namespace pipewright::model
